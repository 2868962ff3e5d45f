// How many closures wait, run and have ended, and the depth of the queue over the last minute.

import type { Summary } from '../protocol';
import { make, makeSvg, setAttribute, setData, setText } from './dom';
import { formatCount } from './format';
import type { Part } from './part';
import { WINDOW, type State } from './store';

type Counter =
  | 'queued'
  | 'in_flight'
  | 'completed'
  | 'retried'
  | 'failed'
  | 'cancelled'
  | 'workers_lost'
  | 'servers_lost';

const BAD = new Set<Counter>(['failed', 'workers_lost', 'servers_lost']);

const COUNTERS: readonly [Counter & keyof Summary, string, string][] = [
  ['queued', 'queued', 'Closures that wait for a worker'],
  ['in_flight', 'in flight', 'Closures that workers hold'],
  ['completed', 'completed', 'Closures that ended well'],
  ['retried', 'retried', 'Times a closure was queued again because its worker was lost'],
  ['failed', 'failed', 'Closures that raised'],
  ['cancelled', 'cancelled', 'Closures dropped before they ran'],
  ['workers_lost', 'workers lost', 'Workers that died or hung so far, those that are back included'],
  ['servers_lost', 'servers lost', 'Parameter servers that have ended so far, those that are back included'],
];

const WIDTH = 120; // The sparkline is drawn in a box of these units and stretched to fit.
const HEIGHT = 32;

export class Counters implements Part {
  readonly needs = ['summary', 'depth'] as const;
  private readonly counts: [Counter, HTMLElement][];
  private readonly spark: SVGSVGElement;
  private readonly area: SVGPathElement;
  private readonly line: SVGPathElement;
  private readonly peak: HTMLElement;

  constructor(root: HTMLElement) {
    const row = make('div', 'psnb-queue', root);
    const counters = make('dl', 'psnb-counters', row);
    this.counts = COUNTERS.map(([key, label, title]) => {
      const box = make('div', '', counters);
      box.title = title;
      make('dt', '', box, label);
      return [key, make('dd', '', box)];
    });
    const depth = make('div', 'psnb-depth', row);
    depth.title = 'Closures queued and in flight over the last minute';
    this.peak = make('div', 'psnb-depth-label', depth);
    this.spark = makeSvg('svg', 'psnb-spark', depth);
    this.spark.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.spark.setAttribute('preserveAspectRatio', 'none');
    this.spark.setAttribute('role', 'img');
    this.area = makeSvg('path', 'psnb-spark-area', this.spark);
    this.line = makeSvg('path', 'psnb-spark-line', this.spark);
  }

  update({ summary, depth }: State): void {
    for (const [key, node] of this.counts) {
      setText(node, formatCount(summary[key]));
      setData(node, 'bad', String(BAD.has(key) && summary[key] > 0));
    }
    const most = Math.max(0, ...depth.map(([, queued, flying]) => queued + flying));
    const x = (time: number): string => (WIDTH * (1 - (summary.time - time) / WINDOW)).toFixed(1);
    const y = (value: number): string => (HEIGHT * (1 - value / (most || 1))).toFixed(1);
    const points = depth.map(([time, queued, flying]) => `${x(time)} ${y(queued + flying)}`);
    const first = depth[0]?.[0] ?? summary.time;
    const line = points.length ? `M${points.join('L')}` : '';
    setAttribute(this.line, 'd', line);
    setAttribute(this.area, 'd', line && `${line}V${HEIGHT}H${x(first)}Z`);
    setText(this.peak, `to do, last minute${most ? `: up to ${formatCount(most)}` : ''}`);
    const now = formatCount(summary.queued + summary.in_flight);
    const label = `Queued and in flight over the last minute: now ${now}, at most ${formatCount(most)}`;
    setAttribute(this.spark, 'aria-label', label);
  }
}
