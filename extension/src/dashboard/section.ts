// What the dashboard's sections are made of: elements of the page, folds and lists, the theme's
// colours, and what is in view. Every name comes from user code and is set as text, never as markup.

import type { Commands } from './commands';
import type { Part, State } from './store';

/** What may have changed; `commands`: what is under way, or what came of it. */
export type Change = Part | 'commands';

/** A section of the dashboard, such as its header, its charts or its table of workers. */
export interface Section {
  /** What it shows: it is updated when one of these has changed, and at first. */
  readonly needs: readonly Change[];
  /**
   * Brings the page in line with the state; called once a frame at most. What is not done when
   * `performance.now()` has reached `end` is better left to the next frame, by `redraw`.
   */
  update(state: State, end: number): void;
  /** Draws again what was drawn with the theme's colours. */
  recolor?(): void;
  dispose?(): void;
}

/** What sections get from the dashboard. */
export interface Context {
  readonly commands: Commands;
  readonly theme: Theme;
  /** Has a section updated with the next frame: it came into view, or was folded open. */
  readonly redraw: (section: Section) => void;
}

const SERIES_COLORS = 6;

/** The variable of the style sheet that has the colour of the n-th series. */
export function seriesColor(n: number): string {
  return `--psnb-series-${n % SERIES_COLORS}`;
}

const COLORS = [
  ...['--psnb-muted', '--psnb-faint', '--psnb-accent', '--psnb-bad', '--psnb-background'],
  ...Array.from({ length: SERIES_COLORS }, (_, n) => seriesColor(n)),
];

/** The style sheet's colours, for canvases; they follow the page's theme. */
export class Theme {
  font = '11px sans-serif';

  private readonly colors = new Map<string, string>();
  private known = false; // whether the colours are those of the page
  private readonly probe: HTMLElement;
  private readonly observer: MutationObserver;
  private readonly dark = matchMedia('(prefers-color-scheme: dark)');
  private readonly changed: () => void;

  /** `changed` is called when the page got another theme. */
  constructor(root: HTMLElement, changed: () => void) {
    this.probe = document.createElement('span');
    this.probe.hidden = true;
    root.append(this.probe);
    this.changed = (): void => {
      this.read();
      changed();
    };
    // JupyterLab changes an attribute of the body, VS Code its class, other pages the root's.
    this.observer = new MutationObserver(this.changed);
    for (const node of [document.documentElement, document.body]) {
      this.observer.observe(node, { attributes: true });
    }
    this.dark.addEventListener('change', this.changed);
    this.read();
  }

  /** The colour that a variable has. */
  color(variable: string): string {
    return this.colors.get(variable) ?? '';
  }

  /** Looks at the page if that was not possible yet: an element has no colours before it is there. */
  attached(): void {
    if (!this.known && this.probe.isConnected) this.changed();
  }

  dispose(): void {
    this.observer.disconnect();
    this.dark.removeEventListener('change', this.changed);
    this.probe.remove();
  }

  /** Reads the colours anew; variables alone would not be resolved to something a canvas takes. */
  private read(): void {
    const style = getComputedStyle(this.probe);
    this.known = this.probe.isConnected;
    for (const variable of COLORS) {
      this.probe.style.color = `var(${variable})`;
      this.colors.set(variable, style.color);
    }
    this.font = `11px ${style.fontFamily || 'sans-serif'}`;
  }
}

/** Which elements are in view, or nearly: others are not drawn. */
export class Visibility {
  private readonly seen = new Set<Element>();
  private readonly watched = new Map<Element, () => void>();
  private readonly observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) this.seen.delete(target);
        else if (!this.seen.has(target)) {
          this.seen.add(target);
          this.watched.get(target)?.();
        }
      }
    },
    { rootMargin: '100px' },
  );

  /** `appeared` is called when the element comes into view. */
  watch(element: Element, appeared: () => void): void {
    this.watched.set(element, appeared);
    this.observer.observe(element);
  }

  forget(element: Element): void {
    this.observer.unobserve(element);
    this.watched.delete(element);
    this.seen.delete(element);
  }

  has(element: Element): boolean {
    return this.seen.has(element);
  }

  dispose(): void {
    this.observer.disconnect();
  }
}

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

/** Makes a span that is read as a word of its own, not as one with that before it. */
export function makeWord(className: string, parent: Element, text = ''): HTMLSpanElement {
  if (parent.lastChild) parent.append(' ');
  return make('span', className, parent, text);
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

  /** `section` is updated when it is folded open. */
  constructor(
    parent: Element,
    title: string,
    open: boolean,
    { redraw }: Context,
    section: Section,
  ) {
    this.root = make('details', 'psnb-section', parent);
    const heading = make('summary', 'psnb-heading', this.root);
    make('span', 'psnb-heading-title', heading, title);
    this.note = makeWord('psnb-heading-note', heading);
    this.body = make('div', 'psnb-body', this.root);
    this.root.open = open;
    this.root.addEventListener('toggle', () => { redraw(section); });
  }

  /** Says something after the title. */
  describe(note: string): void {
    setText(this.note, note);
  }

  get open(): boolean {
    return this.root.open && !this.root.hidden;
  }
}
