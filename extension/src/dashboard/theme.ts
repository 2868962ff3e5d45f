// The style sheet's colours, for canvases; they follow the page's theme.

const COLORS = ['text', 'muted', 'line', 'faint', 'accent', 'bad', 'background'] as const;

/** Series that have a colour of their own. */
export const SERIES_COLORS = 6;

type Color = (typeof COLORS)[number];

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

  color(name: Color): string {
    return this.colors.get(name) ?? '';
  }

  /** The colour of the n-th series. */
  series(n: number): string {
    return this.colors.get(`series-${n % SERIES_COLORS}`) ?? '';
  }

  /** Looks at the page if that was not possible yet: an element has no colours before it is there. */
  attached(): void {
    if (!this.known && this.probe.isConnected) this.changed();
  }

  /** Reads the colours anew; variables alone would not be resolved to something a canvas takes. */
  read(): void {
    const names = [...COLORS, ...Array.from({ length: SERIES_COLORS }, (_, n) => `series-${n}`)];
    const style = getComputedStyle(this.probe);
    this.known = this.probe.isConnected;
    for (const name of names) {
      this.probe.style.color = `var(--psnb-${name})`;
      this.colors.set(name, style.color);
    }
    this.font = `11px ${style.fontFamily || 'sans-serif'}`;
  }

  dispose(): void {
    this.observer.disconnect();
    this.dark.removeEventListener('change', this.changed);
    this.probe.remove();
  }
}
