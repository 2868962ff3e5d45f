// One chart of one metric or several, raw and smoothed, with a legend and a crosshair.

import uPlot from 'uplot';
import {
  axisWidth,
  formatLogTicks,
  formatTicks,
  formatTimeTick,
  rangeOfConstant,
  TIME_STEPS,
  valueRange,
  WHOLE_STEPS,
  type Along,
  type Line,
} from './axes';
import { formatCount, formatDuration, formatNumber, plural } from './format';
import { drawBeyond, drawEpochs } from './marks';
import {
  Keyed,
  make,
  makeWord,
  seriesColor,
  setAttribute,
  setData,
  setHidden,
  setText,
  type Item,
  type Theme,
} from './section';
import type { Drawn } from './download';
import type { MetricState, Series } from './store';

/** What all charts show alike. */
export interface Modes {
  raw: boolean;
  smoothed: boolean;
  byTime: boolean;
}

// uPlot's enum is there for the compiler only: it has no code that could be imported.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC: uPlot.Scale.Distr.Logarithmic = 3;
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const EXPANDED: uPlot.JoinNullMode.Expand = 2;
const HEIGHT = 150;
const MOST_MARKS = 50; // of a line with a value an epoch
const MOST_POINTS = 2; // for each pixel
const RAW_ALPHA = 0.35; // behind its smoothed curve
const ABANDONED_ALPHA = 0.35; // of what it had
const ROUNDING = 1e-6; // seconds: more than what a time loses as a difference of two
const PAD = 0.1; // above and below the values, of their range
const TOP = 8; // pixels above the plot
const NUMBERS = 8; // more of them, for the numbers of epochs

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
  private along: Along = { zero: 0, from: 0, to: 0, epochs: [], rewinds: [] };
  private range: [number, number] | null = null; // of the values that are no outliers
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
    this.plot.setAttribute('role', 'img');
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

  /** Draws metrics; `along` is shared with the charts beside it. */
  update(metrics: MetricState[], along: Along): void {
    this.metrics = metrics;
    this.along = along;
    this.legend.update(metrics);
    this.lines = metrics.filter((metric) => !this.legend.hides(metric.name));
    setHidden(this.plot, !this.lines.length);
    const { raw, smoothed, byTime } = this.modes;
    setText(this.axis, byTime ? 'time' : 'step');
    const names = this.lines.map((metric) => metric.name);
    const whole = this.whole;
    const looks = [this.log, raw, smoothed, byTime, whole, this.marked, this.kinds];
    const shape = JSON.stringify([names, looks]);
    const revisions = this.lines.map((metric) => metric.revision).join();
    const drawn = `${shape} ${this.width} ${revisions} ${JSON.stringify(along)}`;
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
    this.describe(this.lines, along);
    this.follow(this.chart);
  }

  /** Whether it says anything to those that do not see it. */
  get described(): boolean {
    return this.plot.hasAttribute('aria-label');
  }

  /** Says what metrics are; `update` does so, too. */
  describe(metrics: readonly MetricState[], { zero, rewinds }: Along): void {
    const { byTime } = this.modes;
    const said = metrics.map((metric) => sentence(metric, zero, byTime));
    said.push(rewindings(rewinds, byTime));
    setAttribute(this.plot, 'aria-label', said.filter(Boolean).join('. '));
  }

  /** What it shows now; nothing if it was not drawn yet. */
  get drawing(): Drawn | undefined {
    if (!this.chart || !this.lines.length) return undefined;
    const lines = this.lines.map(({ name }) => [name, this.legend.color(name)] as const);
    return { canvas: this.chart.ctx.canvas, lines };
  }

  /** Draws again in the theme's colours. */
  recolor(): void {
    this.drawn = this.shape = '';
    this.update(this.metrics, this.along);
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

  /** Whether something is written above the plot. */
  private get marked(): boolean {
    return this.along.epochs.length + this.along.rewinds.length > 0;
  }

  /** How many columns a curve has. */
  private get kinds(): number {
    return this.along.rewinds.length ? KINDS : 1;
  }

  private data(): uPlot.AlignedData {
    const { raw, smoothed, byTime } = this.modes;
    const { zero, epochs, rewinds } = this.along;
    const shown: Line[] = [];
    const tables = this.lines.map(({ series }): uPlot.AlignedData => {
      const points = drawnPoints(series, byTime, Math.round(MOST_POINTS * this.width), this.log);
      const x = points.x.map((place) => place - zero);
      // A mean is its own average.
      const means = points.raw.every((value, i) => value === points.smoothed[i]);
      shown.push({ x, values: raw ? points.raw : points.smoothed, means });
      const curves = [...(raw ? [points.raw] : []), ...(smoothed ? [points.smoothed] : [])];
      return [x, ...curves.flatMap((curve) => columns(curve, points.kinds, this.kinds))];
    });
    const begins = [...epochs.map(({ place }) => place), ...rewinds].sort((a, b) => a - b);
    this.range = valueRange(shown, begins);
    return aligned(tables);
  }

  private options(): uPlot.Options {
    const { raw, smoothed, byTime } = this.modes;
    const series: uPlot.Series[] = [{}];
    for (const metric of this.lines) {
      const stroke = this.legend.color(metric.name);
      const most = isValidation(metric.name) ? MOST_MARKS : 1;
      const show = (chart: uPlot, line: number): boolean => hasMarks(chart, line, most);
      const points: uPlot.Series.Points = { show, size: 6, fill: stroke };
      const add = (width: number, alpha: number): void => {
        for (let kind = 0; kind < this.kinds; kind++) {
          series.push({ stroke, width, alpha: kind ? alpha * ABANDONED_ALPHA : alpha, points });
        }
      };
      if (raw) add(1, smoothed ? RAW_ALPHA : 1);
      if (smoothed) add(2, 1);
    }
    const muted = this.theme.color('--psnb-muted');
    const axis: uPlot.Axis = {
      font: this.theme.font,
      stroke: muted,
      grid: { stroke: this.theme.color('--psnb-faint'), width: 1 },
      ticks: { show: false },
    };
    const { log, whole } = this;
    const range: uPlot.Range.Function = () => {
      if (!this.range) return [null, null];
      const [low, high] = this.range;
      return rangeOfConstant(low, high, whole) ?? uPlot.rangeNum(low, high, PAD, true);
    };
    const places: uPlot.Range.Function = () => {
      const { from, to } = this.along;
      return from < to ? [from, to] : [from - 1, to + 1];
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
      padding: [this.marked ? TOP + NUMBERS : TOP, 20, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: places }, y: log ? { distr: LOGARITHMIC } : { range } },
      series,
      axes: [xAxis, yAxis],
      hooks: {
        drawAxes: [
          (chart): void => {
            drawEpochs(chart, this.along, muted, this.theme.font);
          },
        ],
        draw: [drawBeyond],
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
      const i = series.at(byTime ? x + this.along.zero + ROUNDING : x, byTime);
      this.legend.show(name, series.values[i] ?? null, series.averages[i] ?? null);
    }
    const count = Math.max(...this.lines.map((metric) => metric.count));
    const place = (value: number): string =>
      byTime ? `after ${formatDuration(value)}` : `step ${formatCount(value)}`;
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

/** What a line says to those that do not see it; places count from `zero`. */
export function sentence({ name, series }: MetricState, zero: number, byTime: boolean): string {
  const places = byTime ? series.times : series.steps;
  const at = (i: number): string => {
    const place = (places[i] ?? 0) - zero;
    return byTime ? formatDuration(place) : formatCount(place);
  };
  const value = (i: number): string => formatNumber(series.averages[i] ?? NaN);
  let [first, last, least, most] = [-1, -1, -1, -1];
  for (let i = 0; i < series.length; i++) {
    const average = series.averages[i] ?? NaN;
    if (!Number.isFinite(average)) continue;
    if (first < 0) first = least = most = i;
    last = i;
    if (average < (series.averages[least] ?? NaN)) least = i;
    if (average > (series.averages[most] ?? NaN)) most = i;
  }
  if (first < 0) return '';
  const now = `${name}: ${value(last)} ${byTime ? 'after' : 'at step'} ${at(last)}`;
  const ends = `lowest ${value(least)} at ${at(least)}, highest ${value(most)} at ${at(most)}`;
  return `${now}, from ${value(first)}; ${ends}`;
}

/** Where parameters went back, for those that do not see the lines there; empty if nowhere. */
export function rewindings(rewinds: readonly number[], byTime: boolean): string {
  const places = rewinds.map((place) => (byTime ? formatDuration(place) : formatCount(place)));
  return places.length ? `rewound ${byTime ? 'after' : 'at step'} ${places.join('; ')}` : '';
}

/** What begins the name of what validation gave of a metric. */
export const VALIDATION = 'val_';

/** Whether a metric has a value an epoch, as validation gives it. */
export function isValidation(name: string): boolean {
  return name.startsWith(VALIDATION);
}

/** Whether the points of a line have marks; a single one would not be seen without. */
function hasMarks(chart: uPlot, line: number, most: number): boolean {
  let points = 0;
  for (const value of chart.data[line] ?? []) {
    if (value !== null && value !== undefined && ++points > most) return false;
  }
  return points > 0;
}

interface LegendEntry extends Item<MetricState> {
  show(value: number | null, average: number | null): void;
}

/** The names of the lines of a chart, with their colours and figures. */
class Legend {
  private readonly list: Keyed<string, MetricState>;
  private readonly entries = new Map<string, LegendEntry>();
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
    return this.theme.color(seriesColor(this.colors.get(name) ?? 0));
  }

  /** Shows a value of a line and the average there. */
  show(name: string, value: number | null, average: number | null): void {
    this.entries.get(name)?.show(value, average);
  }

  private make(name: string): LegendEntry {
    const root = make(this.several ? 'button' : 'span', 'psnb-series', null);
    const swatch = make('span', 'psnb-swatch', root);
    swatch.style.background = `var(${seriesColor(this.colors.get(name) ?? 0)})`;
    swatch.setAttribute('aria-hidden', 'true');
    make('span', 'psnb-metric-name', root, name).title = name;
    const latest = makeWord('psnb-metric-latest', root);
    latest.title = 'The latest value, or that at the pointer';
    const mean = makeWord('psnb-metric-average', root);
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
    const entry: LegendEntry = {
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
    return entry;
  }
}

export type Column = (number | null)[];

/** Points of one line. */
export interface Points {
  x: number[];
  raw: Column;
  smoothed: Column;
}

/**
 * The kinds of points: 0 were not abandoned, and are a line with gaps. Of two abandoned branches
 * behind each other one is 1 and one is 2, so that no line joins them.
 */
const KINDS = 3;

/** Points with the kinds of each, a bit each: where a branch leaves a line, a point has two. */
export interface DrawnPoints extends Points {
  kinds: number[];
}

/** Picks about `wanted` points of a series, of each of its parts some. */
export function drawnPoints(
  series: Series,
  byTime: boolean,
  wanted: number,
  positive: boolean,
): DrawnPoints {
  const all: DrawnPoints = { x: [], raw: [], smoothed: [], kinds: [] };
  const places = byTime ? series.times : series.steps;
  let other = 1;
  let branchBefore = -1;
  for (const { from, to, branch, abandoned } of series.parts()) {
    const [xs, values, averages] = [places, series.values, series.averages].map((column) =>
      column.subarray(from, to),
    ) as [Float64Array, Float64Array, Float64Array];
    const share = Math.ceil((wanted * (to - from)) / series.length);
    const { x, raw, smoothed } = decimate(xs, values, averages, to - from, share, positive);
    if (abandoned) other = KINDS - other;
    const kind = 1 << (abandoned ? other : 0);
    const last = all.kinds.length - 1;
    if (branch === branchBefore) all.kinds[last] = (all.kinds[last] ?? 0) | kind;
    branchBefore = branch;
    all.x.push(...x);
    all.raw.push(...raw);
    all.smoothed.push(...smoothed);
    all.kinds.push(...x.map(() => kind));
  }
  return all;
}

/** One table of several; a gap reaches to the next points of its line, over those of others. */
export function aligned(tables: uPlot.AlignedData[]): uPlot.AlignedData {
  const [only] = tables;
  if (tables.length === 1 && only) return only;
  return uPlot.join(tables, tables.map((table) => table.map(() => EXPANDED)));
}

/** A column for each kind, as uPlot takes them. */
export function columns(curve: Column, kinds: readonly number[], count: number): Column[] {
  return Array.from({ length: count }, (_, kind) =>
    curve.map((value, i) => ((kinds[i] ?? 0) & (1 << kind) ? value : null)),
  );
}

/**
 * Picks about `wanted` points: of each stretch of the series the least and the greatest value (a
 * spike stays visible), and the first and last point of all. What is not finite, or not above zero
 * where `positive`, becomes a gap.
 */
export function decimate(
  xs: Float64Array,
  values: Float64Array,
  averages: Float64Array,
  length: number,
  wanted: number,
  positive: boolean,
): Points {
  const points: Points = { x: [], raw: [], smoothed: [] };
  const drawn = (value: number | undefined): number | null =>
    value !== undefined && Number.isFinite(value) && (!positive || value > 0) ? value : null;
  const take = (i: number): void => {
    points.x.push(xs[i] ?? 0);
    points.raw.push(drawn(values[i]));
    points.smoothed.push(drawn(averages[i]));
  };
  if (length <= wanted) {
    for (let i = 0; i < length; i++) take(i);
    return points;
  }
  const buckets = Math.max(1, wanted >> 1);
  take(0);
  for (let bucket = 0; bucket < buckets; bucket++) {
    const begin = 1 + Math.floor((bucket * (length - 2)) / buckets);
    const end = 1 + Math.floor(((bucket + 1) * (length - 2)) / buckets);
    let least = -1;
    let most = -1;
    let low = Infinity;
    let high = -Infinity;
    for (let i = begin; i < end; i++) {
      const value = values[i] ?? NaN;
      if (value < low && value > -Infinity) [low, least] = [value, i];
      if (value > high && value < Infinity) [high, most] = [value, i];
    }
    if (least < 0) {
      if (end > begin) take(begin); // Nothing finite: a gap.
      continue;
    }
    take(Math.min(least, most));
    if (least !== most) take(Math.max(least, most));
  }
  take(length - 1);
  return points;
}
