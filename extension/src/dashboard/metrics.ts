// Charts of what closures report: one for each metric, or one for all.

import { Chart, type Modes } from './chart';
import { make, Section, setAttribute, setHidden } from './dom';
import { plural } from './format';
import type { Context, Part } from './part';
import type { MetricState, State } from './store';
import { Visibility } from './visible';

const TOGGLES = [
  ['smoothed', 'Smoothed', 'Show averages of about the last hundred values'],
  ['raw', 'Raw', 'Show the values as they were reported'],
  ['byTime', 'By time', 'Place values by when they were reported, not by their number'],
  ['together', 'Together', 'Draw all metrics in one chart'],
] as const;

export class Metrics implements Part {
  readonly needs = ['metrics'] as const;
  private readonly section: Section;
  private readonly list: HTMLElement;
  private readonly visible: Visibility;
  private readonly modes: Modes & { together: boolean } = {
    raw: true,
    smoothed: true,
    byTime: false,
    together: false,
  };
  private readonly charts = new Map<string, Chart>();
  private all: Chart | null = null;

  constructor(
    root: HTMLElement,
    private readonly context: Context,
  ) {
    const redraw = (): void => {
      context.redraw(this);
    };
    this.section = new Section(root, 'Metrics', true, redraw);
    const bar = make('div', 'psnb-toggles', this.section.body);
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
    this.list = make('div', 'psnb-charts', this.section.body);
    this.visible = new Visibility(null, redraw);
  }

  update({ metrics }: State, end: number): void {
    setHidden(this.section.root, !metrics.size);
    this.section.describe(plural(metrics.size, 'metric'));
    if (!this.section.open) return;
    if (this.modes.together) this.drawTogether([...metrics.values()]);
    else this.drawEach(metrics, end);
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

  private drawEach(metrics: ReadonlyMap<string, MetricState>, end: number): void {
    if (this.all) setHidden(this.all.root, true);
    for (const [name, chart] of this.charts) {
      if (metrics.has(name)) continue;
      this.visible.forget(chart.root);
      chart.dispose();
      this.charts.delete(name);
    }
    for (const [name, metric] of metrics) {
      let chart = this.charts.get(name);
      if (!chart) {
        chart = this.makeChart(name, false);
        this.charts.set(name, chart);
      }
      setHidden(chart.root, false);
      if (!this.visible.has(chart.root)) continue;
      chart.update([metric]); // Does nothing if it is up to date: the next frame goes on from here.
      if (performance.now() < end) continue;
      this.context.redraw(this);
      return;
    }
  }

  private drawTogether(metrics: MetricState[]): void {
    for (const chart of this.charts.values()) setHidden(chart.root, true);
    this.all ??= this.makeChart('all metrics', true);
    setHidden(this.all.root, false);
    if (this.visible.has(this.all.root)) this.all.update(metrics);
  }

  private makeChart(title: string, several: boolean): Chart {
    const { theme } = this.context;
    const chart = new Chart(this.list, title, several, this.modes, theme, () => {
      this.context.redraw(this);
    });
    if (several) chart.root.classList.add('psnb-chart-all');
    this.visible.watch(chart.root);
    return chart;
  }
}
