// The names of the lines of a chart, with their colours and figures.

import { Keyed, make, setAttribute, setData, setText, type Item } from './dom';
import { formatNumber } from './format';
import type { MetricState } from './store';
import type { Theme } from './theme';

interface Entry extends Item<MetricState> {
  show(value: number | null, average: number | null): void;
}

export class Legend {
  private readonly list: Keyed<string, MetricState>;
  private readonly entries = new Map<string, Entry>();
  private readonly hidden = new Set<string>();
  private readonly colors = new Map<string, number>(); // A metric keeps the one that it had first.

  /**
   * With `several` lines, each can be hidden: then `toggled` is called. While one is `followed`
   * with the pointer, its figures are those that `show` was given last.
   */
  constructor(
    parent: Element,
    private readonly several: boolean,
    private readonly theme: Theme,
    private readonly followed: () => boolean,
    private readonly toggled: () => void,
  ) {
    const root = make('div', 'psnb-legend', parent);
    this.list = new Keyed(root, (metric) => this.make(metric.name));
  }

  update(metrics: readonly MetricState[]): void {
    for (const { name } of metrics) {
      if (!this.colors.has(name)) this.colors.set(name, this.colors.size);
    }
    this.list.update(metrics.map((metric) => [metric.name, metric]));
  }

  /** Whether a line is not wanted. */
  hides(name: string): boolean {
    return this.hidden.has(name);
  }

  /** The colour of a line. */
  color(name: string): string {
    return this.theme.series(this.colors.get(name) ?? 0);
  }

  /** Shows a value of a line and the average there. */
  show(name: string, value: number | null, average: number | null): void {
    this.entries.get(name)?.show(value, average);
  }

  /** Takes the theme's colours. */
  recolor(): void {
    for (const [name, { root }] of this.entries) this.paint(name, root);
  }

  private make(name: string): Entry {
    const root = make(this.several ? 'button' : 'span', 'psnb-series', null);
    make('span', 'psnb-swatch', root).setAttribute('aria-hidden', 'true');
    make('span', 'psnb-metric-name', root, name).title = name;
    const latest = make('span', 'psnb-metric-latest', root);
    latest.title = 'The latest value, or that at the pointer';
    const mean = make('span', 'psnb-metric-average', root);
    mean.title = 'Average of about the last hundred values';
    if (root instanceof HTMLButtonElement) {
      root.type = 'button';
      root.setAttribute('aria-pressed', 'true');
      root.addEventListener('click', () => {
        const hide = !this.hidden.delete(name);
        if (hide) this.hidden.add(name);
        root.setAttribute('aria-pressed', String(!hide));
        this.toggled();
      });
    }
    const entry: Entry = {
      root,
      update: ({ last, smoothed }) => {
        if (!this.followed() || this.hides(name)) entry.show(last, smoothed);
      },
      show: (value, average) => {
        setText(latest, value === null ? '–' : formatNumber(value));
        // Of a value that is of all examples so far, there is none.
        const text = average === null ? '–' : formatNumber(average);
        setText(mean, average === value ? '' : `avg ${text}`);
        setData(latest, 'bad', String(value !== null && !Number.isFinite(value)));
      },
      dispose: () => {
        this.entries.delete(name);
      },
    };
    this.entries.set(name, entry);
    this.paint(name, root);
    return entry;
  }

  private paint(name: string, root: Element): void {
    const swatch = root.firstElementChild;
    if (swatch) setAttribute(swatch, 'style', `background: ${this.color(name)}`);
  }
}
