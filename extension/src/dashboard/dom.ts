// Making and changing elements of the page. Every name comes from user code and is set as text,
// never as markup.

/** Makes an element. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className: string,
  parent: Element | null,
  text = '',
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  parent?.append(node);
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';

/** Makes an element of a drawing. */
export function makeSvg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  className: string,
  parent: Element,
): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag);
  node.setAttribute('class', className);
  parent.append(node);
  return node;
}

// Writing only what changed spares layout work, and screen readers hear a status once.

export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node: Element, name: string, value: string): void {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function setData(node: HTMLElement | SVGElement, key: string, value: string): void {
  if (node.dataset[key] !== value) node.dataset[key] = value;
}

export function setHidden(node: HTMLElement, hidden: boolean): void {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Something drawn for one item of a list. */
export interface Item<T> {
  readonly root: Element;
  update(item: T): void;
  dispose?(): void;
}

/** A list of items in their order, each kept and changed in place as long as its key is there. */
export class Keyed<K, T> {
  readonly items = new Map<K, Item<T>>();

  constructor(
    private readonly parent: Element,
    private readonly create: (item: T) => Item<T>,
  ) {}

  update(entries: Iterable<readonly [K, T]>): void {
    const wanted = new Map(entries);
    for (const [key, item] of this.items) {
      if (wanted.has(key)) continue;
      item.dispose?.();
      item.root.remove();
      this.items.delete(key);
    }
    let next: Element | null = this.parent.firstElementChild;
    for (const [key, value] of wanted) {
      let item = this.items.get(key);
      if (!item) {
        item = this.create(value);
        this.items.set(key, item);
      }
      // Moving an element would lose its focus: those in their place stay untouched.
      if (item.root === next) next = next.nextElementSibling;
      else this.parent.insertBefore(item.root, next);
      item.update(value);
    }
  }

  dispose(): void {
    this.update([]);
  }
}

/** What folds away under a heading. */
export class Fold {
  readonly root: HTMLDetailsElement;
  readonly body: HTMLElement;
  private readonly note: HTMLElement;

  constructor(parent: Element, title: string, open: boolean, toggled: () => void) {
    this.root = make('details', 'psnb-section', parent);
    const heading = make('summary', 'psnb-heading', this.root);
    make('span', 'psnb-heading-title', heading, title);
    this.note = make('span', 'psnb-heading-note', heading);
    this.body = make('div', 'psnb-body', this.root);
    this.root.open = open;
    this.root.addEventListener('toggle', toggled);
  }

  /** Says something after the title. */
  describe(note: string): void {
    setText(this.note, note);
  }

  get open(): boolean {
    return this.root.open && !this.root.hidden;
  }
}
