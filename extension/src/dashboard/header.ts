// The head of the dashboard: which coordinator it is, its state and speed, its counters and queue.

import type { Summary } from '../protocol';
import { make, makeSvg, setAttribute, setData, setHidden, setText } from './dom';
import {
  formatCount,
  formatDuration,
  formatNumber,
  formatOf,
  formatRate,
  webAddress,
} from './format';
import type { Section } from './section';
import { toNumber, WINDOW, type State } from './store';

const LEFT = 'Estimated time until all epochs are over; without training, until all that is queued has ended';

export class Header implements Section {
  readonly needs = ['summary', 'identity', 'notice'] as const;
  private readonly name: HTMLElement;
  private readonly state: HTMLElement;
  private readonly place: HTMLElement;
  private readonly link: HTMLAnchorElement;
  private readonly notice: HTMLElement;
  private readonly figures: Record<string, HTMLElement> = {};

  constructor(private readonly root: HTMLElement) {
    const top = make('div', 'psnb-top', root);
    this.name = make('span', 'psnb-name', top);
    this.state = make('span', 'psnb-state', top);
    this.state.setAttribute('role', 'status');
    this.place = make('span', 'psnb-place', top);
    this.link = make('a', 'psnb-link', top, 'Dask dashboard');
    this.link.target = '_blank';
    this.link.rel = 'noopener noreferrer';
    const figures = make('dl', 'psnb-figures', root);
    const figure = (key: string, label: string, title: string): void => {
      const box = make('div', '', figures);
      box.title = title;
      make('dt', '', box, label);
      this.figures[key] = make('dd', '', box);
    };
    figure('epoch', 'epoch', 'The epoch of the present training, or of the last one');
    figure('batch', 'batch', 'Batches of the epoch that were used, of how many once that is known');
    figure('eta', 'time left', LEFT);
    figure('elapsed', 'elapsed', 'Time since the coordinator started');
    figure('closures', 'closures/s', 'Closures that ended, per second');
    figure('examples', 'examples/s', 'Sum of the metric "examples" that closures report, per second');
    figure('staleness', 'staleness', 'Updates that others made between a pull and the push: mean, maximum');
    this.notice = make('div', 'psnb-notice', root);
    this.notice.setAttribute('role', 'status');
  }

  update({ summary, identity, notice }: State): void {
    setText(this.name, identity.name || 'Coordinator');
    setAttribute(this.root, 'aria-label', `Coordinator ${identity.name}`.trim());
    setText(this.state, summary.state);
    setData(this.state, 'tone', summary.tone);
    setAttribute(this.state, 'title', summary.meaning);
    const place = identity.host && `${identity.host}, process ${identity.process}`;
    setText(this.place, place);
    setAttribute(this.place, 'title', identity.cluster && `Cluster ${identity.cluster}`);
    const dashboard = webAddress(identity.dashboard);
    setHidden(this.link, !dashboard);
    if (dashboard) setAttribute(this.link, 'href', dashboard);
    const { training } = summary;
    this.show('epoch', training?.epoch ? formatOf(training.epoch, training.epochs) : '');
    this.show('batch', training ? formatOf(training.batch, training.batches) : '');
    const most = training?.batches ?? 0;
    // Its digits grow in number, and must not move what is next to them.
    this.figures['batch']?.style.setProperty('min-width', most ? `${formatOf(most, most).length}ch` : '');
    this.figure('elapsed', formatDuration(summary.elapsed));
    this.figure('eta', summary.eta === null ? '' : formatDuration(toNumber(summary.eta)));
    this.figure('closures', formatRate(toNumber(summary.closures_per_second)));
    const examples = summary.examples_per_second;
    this.figure('examples', examples === null ? '' : formatRate(toNumber(examples)));
    const mean = toNumber(summary.staleness_mean);
    const staleness = `${formatNumber(mean)}, ${formatCount(summary.staleness_max)}`;
    this.figure('staleness', Number.isNaN(mean) ? '' : staleness);
    setText(this.notice, notice);
  }

  /** Shows a figure, or nothing of it if there is none. */
  private show(key: string, text: string): void {
    const box = this.figures[key]?.parentElement;
    if (box) setHidden(box, !text);
    this.figure(key, text);
  }

  private figure(key: string, text: string): void {
    const node = this.figures[key];
    if (node) setText(node, text || '–');
  }
}

const COUNTERS = [
  ['queued', 'queued', 'Closures that wait for a worker'],
  ['in_flight', 'in flight', 'Closures that workers hold'],
  ['completed', 'completed', 'Closures that ended well'],
  ['retried', 'retried', 'Times a closure was queued again because its worker was lost'],
  ['failed', 'failed', 'Closures that raised'],
  ['cancelled', 'cancelled', 'Closures dropped before they ran'],
  ['workers_lost', 'workers lost', 'Workers that died or hung so far, those that are back included'],
  ['servers_lost', 'servers lost', 'Parameter servers that have ended so far, those that are back included'],
] as const satisfies readonly (readonly [keyof Summary, label: string, title: string])[];

type Counter = (typeof COUNTERS)[number][0];

const BAD = new Set<Counter>(['failed', 'workers_lost', 'servers_lost']);

const WIDTH = 120; // The sparkline is drawn in a box of these units and stretched to fit.
const HEIGHT = 32;

/** How many closures wait, run and have ended, and the depth of the queue over the last minute. */
export class Counters implements Section {
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
