// One chart of one metric or several, raw and smoothed, with a crosshair.

import uPlot from 'uplot';
import { decimate } from './decimate';
import { Keyed, make, setAttribute, setData, setHidden, setText, type Item } from './dom';
import { formatCount, formatDuration, formatNumber, formatRate } from './format';
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
const MOST_POINTS = 2; // for each pixel
const RAW_ALPHA = 0.35; // behind its smoothed curve

interface Legend extends Item<MetricState> {
  show(raw: number | null, smoothed: number | null): void;
}

export class Chart {
  readonly root: HTMLElement;
  private readonly plot: HTMLElement;
  private readonly where: HTMLElement;
  private readonly logButton: HTMLButtonElement;
  private readonly legend: Keyed<string, MetricState>;
  private readonly legends = new Map<string, Legend>();
  private readonly sizes: ResizeObserver;
  private readonly hiddenNames = new Set<string>();
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
    private readonly several: boolean,
    private readonly modes: Modes,
    private readonly theme: Theme,
    private readonly redraw: () => void,
  ) {
    this.root = make('div', 'psnb-chart', parent);
    this.root.setAttribute('role', 'group');
    this.root.setAttribute('aria-label', `Chart of ${title}`);
    const head = make('div', 'psnb-chart-head', this.root);
    const legend = make('div', 'psnb-legend', head);
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
    this.where = make('div', 'psnb-where', this.root);
    this.legend = new Keyed(legend, (metric) => this.makeLegend(metric));
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
    this.legend.update(metrics.map((metric) => [metric.name, metric]));
    this.lines = metrics.filter((metric) => !this.hiddenNames.has(metric.name));
    setHidden(this.plot, !this.lines.length);
    const { raw, smoothed, byTime } = this.modes;
    const names = this.lines.map((metric) => metric.name);
    const shape = JSON.stringify([names, this.log, raw, smoothed, byTime]);
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
    this.metrics.forEach((metric, i) => {
      this.colorLegend(metric.name, i);
    });
  }

  dispose(): void {
    this.sizes.disconnect();
    this.chart?.destroy();
    this.root.remove();
  }

  private data(): uPlot.AlignedData {
    const { raw, smoothed, byTime } = this.modes;
    const tables = this.lines.map(({ series }): uPlot.AlignedData => {
      const points = decimate(
        byTime ? series.times : series.steps,
        series.values,
        series.averages,
        series.length,
        Math.round(MOST_POINTS * this.width),
        this.log,
      );
      return [points.x, ...(raw ? [points.raw] : []), ...(smoothed ? [points.smoothed] : [])];
    });
    const [first] = tables;
    return tables.length === 1 && first ? first : uPlot.join(tables);
  }

  private options(): uPlot.Options {
    const { raw, smoothed, byTime } = this.modes;
    const series: uPlot.Series[] = [{}];
    for (const metric of this.lines) {
      const stroke = this.theme.series(this.metrics.indexOf(metric));
      const points = { show: metric.series.length < 2 };
      if (raw) series.push({ stroke, width: 1, alpha: smoothed ? RAW_ALPHA : 1, points });
      if (smoothed) series.push({ stroke, width: 2, points });
    }
    const axis: uPlot.Axis = {
      font: this.theme.font,
      stroke: this.theme.color('muted'),
      grid: { stroke: this.theme.color('faint'), width: 1 },
      ticks: { show: false },
    };
    const first = this.lines[0]?.series.times[0] ?? 0;
    const xLabels = (_: uPlot, ticks: number[]): string[] =>
      ticks.map((tick) => (byTime ? formatDuration(Math.max(0, tick - first)) : formatRate(tick)));
    const yLabels = (_: uPlot, ticks: (number | null)[]): string[] =>
      ticks.map((tick) => (tick === null ? '' : formatTick(tick)));
    return {
      width: this.width,
      height: HEIGHT,
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: this.log ? { distr: LOGARITHMIC } : {} },
      series,
      axes: [
        { ...axis, size: 24, gap: 4, space: 70, values: xLabels },
        { ...axis, size: 50, gap: 4, space: 28, values: yLabels },
      ],
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
    const { raw, smoothed, byTime } = this.modes;
    const x = index === null || index === undefined ? undefined : chart.data[0][index];
    const stride = Number(raw) + Number(smoothed);
    this.lines.forEach((metric, i) => {
      const at = (column: number): number | null =>
        x === undefined ? null : valueAt(chart.data[1 + i * stride + column], index ?? 0);
      const legend = this.legends.get(metric.name);
      if (x === undefined) legend?.show(metric.last, metric.smoothed);
      else legend?.show(raw ? at(0) : null, smoothed ? at(Number(raw)) : null);
    });
    const [first] = this.lines;
    const count = formatCount(Math.max(...this.lines.map((metric) => metric.count)));
    const place = (value: number): string =>
      byTime
        ? `after ${formatDuration(Math.max(0, value - (first?.series.times[0] ?? value)))}`
        : `value ${formatCount(value)}`;
    setText(this.where, x === undefined ? `${count} values` : place(x));
  }

  private makeLegend(metric: MetricState): Legend {
    const { name } = metric;
    const root = make(this.several ? 'button' : 'span', 'psnb-series', null);
    make('span', 'psnb-swatch', root).setAttribute('aria-hidden', 'true');
    make('span', 'psnb-metric-name', root, name).title = name;
    const smoothed = make('span', 'psnb-metric-smoothed', root);
    smoothed.title = 'Average of about the last hundred values';
    const raw = make('span', 'psnb-metric-raw', root);
    raw.title = 'As it was reported';
    if (root instanceof HTMLButtonElement) {
      root.type = 'button';
      root.setAttribute('aria-pressed', 'true');
      root.addEventListener('click', () => {
        const hide = !this.hiddenNames.delete(name);
        if (hide) this.hiddenNames.add(name);
        root.setAttribute('aria-pressed', String(!hide));
        this.redraw();
      });
    }
    const legend: Legend = {
      root,
      update: ({ last, smoothed: average }) => {
        // The values under the crosshair stay as long as it is there.
        if (this.chart?.cursor.idx == null || this.hiddenNames.has(name)) legend.show(last, average);
      },
      show: (value, average) => {
        setText(smoothed, average === null ? '–' : formatNumber(average));
        setText(raw, value === null ? '' : formatNumber(value));
        setData(raw, 'bad', String(value !== null && !Number.isFinite(value)));
      },
      dispose: () => {
        this.legends.delete(name);
      },
    };
    this.legends.set(name, legend);
    this.colorLegend(name, this.metrics.indexOf(metric));
    return legend;
  }

  private colorLegend(name: string, index: number): void {
    const swatch = this.legends.get(name)?.root.firstElementChild;
    if (swatch) setAttribute(swatch, 'style', `background: ${this.theme.series(index)}`);
  }
}

/** The value at a place, or the one before where another line has a point and this one has none. */
function valueAt(column: uPlot.AlignedData[number] | undefined, index: number): number | null {
  let i = index;
  while (i > 0 && column?.[i] === undefined) i--;
  return column?.[i] ?? null;
}

function formatTick(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace('.0e', 'e');
  return String(Number(value.toPrecision(6)));
}
