// Charts of what closures report: one for each metric, or one for all. Many stand in groups by the
// beginning of their names, and can be filtered.

import { sharedAxis, type Along } from './axes';
import { Chart, isValidation, VALIDATION, type Modes } from './chart';
import { csv, picture, save } from './download';
import { formatCount, plural } from './format';
import {
  Fold,
  make,
  makeWord,
  setAttribute,
  setHidden,
  setText,
  Visibility,
  type Context,
  type Section,
} from './section';
import type { MetricState, State } from './store';

const TOGGLES = [
  ['smoothed', 'Smoothed', 'Show averages of about the last hundred values'],
  ['raw', 'Raw', 'Show the values as they were reported'],
  ['byTime', 'By time', 'Place values by when they were reported, not by their number'],
  ['together', 'Together', 'Draw all metrics in one chart'],
] as const;

interface Group {
  readonly root: HTMLElement;
  readonly note: HTMLElement | null;
  readonly charts: HTMLElement;
}

export class Metrics implements Section {
  readonly needs = ['metrics', 'epochs', 'rewinds'] as const;
  private readonly fold: Fold;
  private readonly filter: HTMLInputElement;
  private readonly nothing: HTMLElement;
  private readonly visible = new Visibility();
  private readonly modes: Modes & { together: boolean } = {
    raw: true,
    smoothed: true,
    byTime: false,
    together: false,
  };
  private readonly groups = new Map<string, Group>();
  private readonly charts = new Map<string, Chart>();
  private all: Chart | null = null;
  private shown: MetricState[][] = []; // by chart
  private along: Along = sharedAxis([], [], false);
  private name = '';

  constructor(
    root: HTMLElement,
    private readonly context: Context,
  ) {
    const redraw = (): void => {
      context.redraw(this);
    };
    this.fold = new Fold(root, 'Metrics', true, context, this);
    const bar = make('div', 'psnb-toggles', this.fold.body);
    bar.setAttribute('role', 'group');
    bar.setAttribute('aria-label', 'What the charts show');
    for (const [mode, label, title] of TOGGLES) {
      const button = make('button', 'psnb-button psnb-toggle', bar, label);
      button.type = 'button';
      button.title = title;
      setAttribute(button, 'aria-pressed', String(this.modes[mode]));
      button.addEventListener('click', () => {
        this.modes[mode] = !this.modes[mode];
        setAttribute(button, 'aria-pressed', String(this.modes[mode]));
        redraw();
      });
    }
    const download = (label: string, title: string, act: () => void): void => {
      const button = make('button', 'psnb-button psnb-toggle', bar, label);
      button.type = 'button';
      button.title = title;
      button.addEventListener('click', act);
    };
    download('CSV', 'Download the points of these charts as a table', () => {
      save(`${this.name}.csv`, new Blob([csv(this.shown.flat())], { type: 'text/csv' }));
    });
    download('PNG', 'Download these charts as a picture', () => void this.savePicture());
    this.filter = make('input', 'psnb-field psnb-filter', bar);
    this.filter.type = 'search';
    this.filter.placeholder = 'filter';
    this.filter.setAttribute('aria-label', 'Filter metrics by name');
    this.filter.addEventListener('input', redraw);
    this.nothing = make('div', 'psnb-problem', this.fold.body, 'No metric has this in its name.');
  }

  update({ metrics, epochs, identity }: State, end: number): void {
    this.name = identity.name || 'psnb';
    setHidden(this.fold.root, !metrics.size);
    const charts = charted(metrics.keys());
    const many = charts.size >= MANY;
    const wanted = (lines: string[]): boolean => !many || matching(lines, this.filter.value).length > 0;
    const names = [...charts].filter(([, lines]) => wanted(lines)).map(([name]) => name);
    const shown = names.length < charts.size ? `${formatCount(names.length)} of ` : '';
    this.fold.describe(shown + plural(charts.size, 'metric'));
    if (!this.fold.open) return;
    setHidden(this.filter, !many);
    setHidden(this.nothing, !!names.length);
    for (const [name, chart] of this.charts) {
      if (!charts.has(name)) this.forget(name, chart);
    }
    const found = names.map((name) =>
      (charts.get(name) ?? []).map((line) => metrics.get(line)).filter((metric) => metric !== undefined),
    );
    this.shown = found;
    this.along = sharedAxis(found.flat(), epochs, this.modes.byTime);
    const { together } = this.modes;
    this.drawTogether(together ? found.flat() : []);
    this.place(many ? grouped(charts.keys()) : new Map([['', names]]), new Set(together ? [] : names));
    if (!together) this.drawEach(found, end);
  }

  recolor(): void {
    this.all?.recolor();
    for (const chart of this.charts.values()) chart.recolor();
  }

  dispose(): void {
    this.visible.dispose();
    this.all?.dispose();
    for (const chart of this.charts.values()) chart.dispose();
  }

  private async savePicture(): Promise<void> {
    const charts = this.modes.together
      ? [this.all]
      : this.shown.map((lines) => {
          const chart = this.chart(lines[0]?.name ?? '');
          chart.update(lines, this.along); // One out of sight may not have been drawn.
          return chart;
        });
    const drawn = charts.map((chart) => chart?.drawing).filter((each) => each !== undefined);
    const { theme } = this.context;
    const made = await picture(drawn, theme.color('--psnb-background'), theme.font);
    if (made) save(`${this.name}.png`, made);
  }

  /** Puts the charts into their groups, and hides those that are not shown. */
  private place(groups: ReadonlyMap<string, string[]>, shown: ReadonlySet<string>): void {
    for (const [prefix, group] of this.groups) setHidden(group.root, !groups.has(prefix));
    for (const [prefix, names] of groups) {
      const group = this.group(prefix);
      let count = 0;
      for (const name of names) {
        const { root } = this.chart(name);
        if (root.parentElement !== group.charts) group.charts.append(root);
        setHidden(root, !shown.has(name));
        count += Number(shown.has(name));
      }
      setHidden(group.root, !count);
      if (group.note) setText(group.note, plural(count, 'chart'));
    }
  }

  private drawEach(charts: MetricState[][], end: number): void {
    for (const lines of charts) {
      const chart = this.chart(lines[0]?.name ?? '');
      // Out of sight it has the sentence of some time ago: it is drawn when one comes to it.
      if (!chart.described) chart.describe(lines, this.along);
      if (!this.visible.has(chart.root)) continue;
      chart.update(lines, this.along); // Does nothing if it is up to date: the next frame goes on from here.
      if (performance.now() < end) continue;
      this.context.redraw(this);
      return;
    }
  }

  private drawTogether(metrics: MetricState[]): void {
    if (metrics.length) this.all ??= this.makeChart('all metrics', true);
    if (!this.all) return;
    setHidden(this.all.root, !metrics.length);
    if (metrics.length && this.visible.has(this.all.root)) this.all.update(metrics, this.along);
  }

  private chart(name: string): Chart {
    let chart = this.charts.get(name);
    if (!chart) {
      chart = this.makeChart(name, false);
      this.charts.set(name, chart);
    }
    return chart;
  }

  /** The group of a prefix; metrics without one have no heading. */
  private group(prefix: string): Group {
    let group = this.groups.get(prefix);
    if (group) return group;
    if (prefix) {
      const root = make('details', 'psnb-group', this.fold.body);
      root.open = true;
      const heading = make('summary', 'psnb-heading', root);
      heading.title = prefix;
      make('span', 'psnb-group-title', heading, prefix);
      const note = makeWord('psnb-heading-note', heading);
      group = { root, note, charts: make('div', 'psnb-charts', root) };
    } else {
      const root = make('div', 'psnb-charts', null);
      this.nothing.after(root); // Before all groups.
      group = { root, note: null, charts: root };
    }
    this.groups.set(prefix, group);
    return group;
  }

  private makeChart(title: string, several: boolean): Chart {
    const { theme } = this.context;
    const parent = several ? this.fold.body : null;
    const redraw = (): void => {
      this.context.redraw(this);
    };
    const chart = new Chart(parent, title, several, this.modes, theme, redraw);
    this.visible.watch(chart.root, redraw);
    return chart;
  }

  private forget(name: string, chart: Chart): void {
    this.visible.forget(chart.root);
    chart.dispose();
    this.charts.delete(name);
  }
}

/** From so many metrics on they stand in groups, and can be filtered. */
export const MANY = 7;

/** Names by what they have before their first slash: "train/" or nothing; in the order they have. */
export function grouped(names: Iterable<string>): Map<string, string[]> {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const prefix = name.slice(0, name.indexOf('/') + 1);
    const group = groups.get(prefix);
    if (group) group.push(name);
    else groups.set(prefix, [name]);
  }
  return groups;
}

const LAST = 'programs'; // Of compiled steps: it says nothing of the model.

/** The metrics that have a chart, each with what it draws: its validation, too. */
export function charted(names: Iterable<string>): Map<string, string[]> {
  const all = [...names];
  const charts = new Map<string, string[]>();
  const first = all.filter((name) => name !== LAST);
  for (const name of [...first, ...all.filter((name) => name === LAST)]) {
    if (isValidation(name) && all.includes(name.slice(VALIDATION.length))) continue;
    const validation = VALIDATION + name;
    charts.set(name, all.includes(validation) ? [name, validation] : [name]);
  }
  return charts;
}

/** The names that have every word of a text in them, in capitals or not. */
export function matching(names: Iterable<string>, text: string): string[] {
  const words = text.toLowerCase().split(/\s+/);
  return [...names].filter((name) => words.every((word) => name.toLowerCase().includes(word)));
}
