// One chart of one metric or several, raw and smoothed, with a crosshair.

import uPlot from 'uplot';
import {
  axisWidth,
  formatLogTicks,
  formatTicks,
  formatTimeTick,
  rangeOfConstant,
  TIME_STEPS,
  WHOLE_STEPS,
} from './axes';
import { decimate } from './decimate';
import { make, setHidden, setText } from './dom';
import { formatCount, formatDuration, plural } from './format';
import { isValidation } from './groups';
import { Legend } from './legend';
import type { MetricState } from './store';
import type { Theme } from './theme';

/** What all charts show alike. */
export interface Modes {
  raw: boolean;
  smoothed: boolean;
  byTime: boolean;
}

// uPlot's enum is there for the compiler only: it has no code that could be imported.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC: uPlot.Scale.Distr.Logarithmic = 3;
const HEIGHT = 150;
const MOST_MARKS = 50; // of a line with a value an epoch
const MOST_POINTS = 2; // for each pixel
const RAW_ALPHA = 0.35; // behind its smoothed curve
const ROUNDING = 1e-6; // seconds: more than what a time loses as a difference of two
const PAD = 0.1; // above and below the values, of their range

export class Chart {
  readonly root: HTMLElement;
  private readonly plot: HTMLElement;
  private readonly axis: HTMLElement;
  private readonly where: HTMLElement;
  private readonly logButton: HTMLButtonElement;
  private readonly legend: Legend;
  private readonly sizes: ResizeObserver;
  private chart: uPlot | null = null;
  private shape = ''; // of the chart that is there; another one needs a new chart
  private width = 0;
  private log = false;
  private metrics: MetricState[] = [];
  private lines: MetricState[] = [];
  private drawn = '';

  constructor(
    parent: Element | null,
    title: string,
    several: boolean,
    private readonly modes: Modes,
    private readonly theme: Theme,
    private readonly redraw: () => void,
  ) {
    this.root = make('div', 'psnb-chart', parent);
    this.root.setAttribute('role', 'group');
    this.root.setAttribute('aria-label', `Chart of ${title}`);
    const head = make('div', 'psnb-chart-head', this.root);
    const followed = (): boolean => this.chart?.cursor.idx != null;
    this.legend = new Legend(head, several, theme, followed, redraw);
    this.logButton = make('button', 'psnb-button psnb-toggle', head, 'log');
    this.logButton.type = 'button';
    this.logButton.title = 'Logarithmic scale; values of zero and below are left out';
    this.logButton.setAttribute('aria-label', `Logarithmic scale of ${title}`);
    this.logButton.setAttribute('aria-pressed', 'false');
    this.logButton.addEventListener('click', () => {
      this.log = !this.log;
      this.logButton.setAttribute('aria-pressed', String(this.log));
      this.redraw();
    });
    this.plot = make('div', 'psnb-plot', this.root);
    const foot = make('div', 'psnb-chart-foot', this.root);
    this.axis = make('span', '', foot);
    this.where = make('span', 'psnb-where', foot);
    this.sizes = new ResizeObserver((entries) => {
      const width = Math.floor(entries[0]?.contentRect.width ?? 0);
      if (width === this.width) return;
      this.width = width;
      this.redraw();
    });
    this.sizes.observe(this.plot);
  }

  update(metrics: MetricState[]): void {
    this.metrics = metrics;
    this.legend.update(metrics);
    this.lines = metrics.filter((metric) => !this.legend.hides(metric.name));
    setHidden(this.plot, !this.lines.length);
    const { raw, smoothed, byTime } = this.modes;
    setText(this.axis, byTime ? 'time since the first value' : 'values so far');
    const names = this.lines.map((metric) => metric.name);
    const whole = this.whole;
    const shape = JSON.stringify([names, this.log, raw, smoothed, byTime, whole]);
    const drawn = `${shape} ${this.width} ${this.lines.map((metric) => metric.revision).join()}`;
    if (!this.width || !this.lines.length || drawn === this.drawn) return;
    this.drawn = drawn;
    const data = this.data();
    if (this.chart && shape === this.shape) {
      if (this.chart.width !== this.width) this.chart.setSize({ width: this.width, height: HEIGHT });
      this.chart.setData(data);
    } else {
      this.chart?.destroy();
      this.shape = shape;
      this.chart = new uPlot(this.options(), data, this.plot);
    }
    this.follow(this.chart);
  }

  /** Draws again in the theme's colours. */
  recolor(): void {
    this.drawn = this.shape = '';
    this.update(this.metrics);
    this.legend.recolor();
  }

  dispose(): void {
    this.sizes.disconnect();
    this.chart?.destroy();
    this.root.remove();
  }

  /** Whether only whole numbers are drawn, behind their averages. */
  private get whole(): boolean {
    return this.modes.raw && this.lines.every(({ series }) => series.whole);
  }

  /** The time of the first value: places by time count from it. */
  private get first(): number {
    if (!this.modes.byTime) return 0;
    return Math.min(...this.lines.map(({ series }) => (series.length ? (series.times[0] ?? 0) : Infinity)));
  }

  private data(): uPlot.AlignedData {
    const { raw, smoothed, byTime } = this.modes;
    const { first } = this;
    const tables = this.lines.map(({ series }): uPlot.AlignedData => {
      const points = decimate(
        byTime ? series.times : series.steps,
        series.values,
        series.averages,
        series.length,
        Math.round(MOST_POINTS * this.width),
        this.log,
      );
      const x = byTime ? points.x.map((time) => time - first) : points.x;
      return [x, ...(raw ? [points.raw] : []), ...(smoothed ? [points.smoothed] : [])];
    });
    const [only] = tables;
    return tables.length === 1 && only ? only : uPlot.join(tables);
  }

  private options(): uPlot.Options {
    const { raw, smoothed, byTime } = this.modes;
    const series: uPlot.Series[] = [{}];
    for (const metric of this.lines) {
      const stroke = this.legend.color(metric.name);
      const most = isValidation(metric.name) ? MOST_MARKS : 1;
      const show = (chart: uPlot, line: number): boolean => hasMarks(chart, line, most);
      const points: uPlot.Series.Points = { show, size: 6, fill: stroke };
      if (raw) series.push({ stroke, width: 1, alpha: smoothed ? RAW_ALPHA : 1, points });
      if (smoothed) series.push({ stroke, width: 2, points });
    }
    const axis: uPlot.Axis = {
      font: this.theme.font,
      stroke: this.theme.color('muted'),
      grid: { stroke: this.theme.color('faint'), width: 1 },
      ticks: { show: false },
    };
    const { log, whole } = this;
    const range: uPlot.Range.Function = (_, low, high) => {
      // uPlot's types leave out that there may be nothing to draw.
      if ((low as number | null) === null) return [null, null];
      return rangeOfConstant(low, high, whole) ?? uPlot.rangeNum(low, high, PAD, true);
    };
    const xAxis: uPlot.Axis = {
      ...axis,
      size: 20,
      gap: 4,
      space: 70,
      incrs: byTime ? TIME_STEPS : WHOLE_STEPS,
      values: (_, ticks) => (byTime ? ticks.map(formatTimeTick) : ticks.map(formatCount)),
    };
    const yAxis: uPlot.Axis = {
      ...axis,
      size: (chart, labels) => this.axisSize(chart, labels),
      gap: 4,
      space: 28,
      values: (_chart, ticks, _axis, _space, step) =>
        log ? formatLogTicks(ticks) : formatTicks(ticks, step),
    };
    if (whole && !log) yAxis.incrs = WHOLE_STEPS;
    return {
      width: this.width,
      height: HEIGHT,
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: log ? { distr: LOGARITHMIC } : { range } },
      series,
      axes: [xAxis, yAxis],
      hooks: {
        setCursor: [
          (chart): void => {
            this.follow(chart);
          },
        ],
      },
    };
  }

  /** Shows the values under the crosshair, or the newest ones. */
  private follow(chart: uPlot): void {
    const index = chart.cursor.idx;
    const { byTime } = this.modes;
    const x = index === null || index === undefined ? undefined : chart.data[0][index];
    for (const { name, last, smoothed, series } of this.lines) {
      if (x === undefined) {
        this.legend.show(name, last, smoothed);
        continue;
      }
      const i = series.at(byTime ? x + this.first + ROUNDING : x, byTime);
      this.legend.show(name, series.values[i] ?? null, series.averages[i] ?? null);
    }
    const count = Math.max(...this.lines.map((metric) => metric.count));
    const place = (value: number): string =>
      byTime ? `after ${formatDuration(value)}` : `value ${formatCount(value)}`;
    setText(this.where, x === undefined ? plural(count, 'value') : place(x));
  }

  private axisSize(chart: uPlot, labels: readonly string[] | null): number {
    const { ctx } = chart;
    ctx.save();
    ctx.font = this.theme.font;
    const width = axisWidth(labels ?? [], (text) => ctx.measureText(text).width);
    ctx.restore();
    return width;
  }
}

/** Whether the points of a line have marks; a single one would not be seen without. */
function hasMarks(chart: uPlot, line: number, most: number): boolean {
  let points = 0;
  for (const value of chart.data[line] ?? []) {
    if (value !== null && value !== undefined && ++points > most) return false;
  }
  return points > 0;
}
