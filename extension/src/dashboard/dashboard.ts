// The dashboard of one coordinator: brings its sections up to date, once a frame at most and only
// those that changed. The notebook's widget and JupyterLab's panel draw with it. Its head is here, too:
// which coordinator it is, its state and speed, its counters and queue.

import type { Command, Summary } from '../protocol';
import { Commands, Controls } from './commands';
import {
  formatCount,
  formatDuration,
  formatNumber,
  formatOf,
  formatParts,
  formatRate,
  webAddress,
} from './format';
import { Metrics } from './metrics';
import {
  make,
  makeWord,
  makeSvg,
  setAttribute,
  setData,
  setHidden,
  setText,
  Theme,
  type Change,
  type Context,
  type Section,
} from './section';
import { SliceTables } from './slices';
import { PARTS, toNumber, WINDOW, type State, type Store } from './store';
import { Events, Failures, Optimizers, Servers, Workers } from './tables';
import { TableViews } from './tableViews';
import { Timeline } from './timeline';

// Milliseconds of a frame that are spent on updates; the browser needs the rest.
const BUDGET = 6;

export class Dashboard {
  private readonly root: HTMLElement;
  private readonly body: HTMLElement;
  private readonly problem: HTMLElement;
  private readonly sections: Section[];
  private readonly commands: Commands;
  private readonly theme: Theme;
  private readonly ignore: () => void;
  private readonly stale = new Set<Section>(); // those that are to be updated
  private frame = 0;

  /**
   * Draws into `el` what `store` has, now and later; `send` takes the commands that are given.
   */
  constructor(
    el: HTMLElement,
    private readonly store: Store,
    send: (command: Command) => void,
  ) {
    this.root = make('div', 'psnb-dashboard', el);
    // In a cell, JupyterLab would take keys for its own: arrows select cells, letters add some.
    this.root.dataset['lmSuppressShortcuts'] = 'true';
    this.problem = make('div', 'psnb-problem', this.root);
    this.problem.setAttribute('role', 'status');
    this.body = make('div', '', this.root);
    this.body.setAttribute('role', 'group');
    this.theme = new Theme(this.root, () => {
      for (const section of this.sections) section.recolor?.();
    });
    this.commands = new Commands(store, send, () => {
      this.mark(['commands']);
    });
    const context: Context = {
      commands: this.commands,
      theme: this.theme,
      redraw: (section) => {
        this.stale.add(section);
        this.schedule();
      },
    };
    this.sections = [
      new Header(this.body),
      new Counters(this.body),
      new Controls(this.body, context),
      new Metrics(this.body, context),
      new SliceTables(this.body, context),
      new Workers(this.body, context),
      new Timeline(this.body, context),
      ...makeServers(this.body, context),
      new Optimizers(this.body, context),
      new Failures(this.body, context),
      new Events(this.body, context),
    ];
    this.ignore = store.listen({
      changed: (parts) => {
        this.mark(parts);
      },
    });
    this.mark(PARTS);
    this.draw(Infinity); // At once: a page that is being restored shows its figures without a blink.
  }

  /** Ends all that goes on and empties the element. */
  dispose(): void {
    cancelAnimationFrame(this.frame);
    this.ignore();
    this.commands.dispose();
    this.theme.dispose();
    for (const section of this.sections) section.dispose?.();
    this.root.remove();
  }

  private mark(changes: Iterable<Change>): void {
    const changed = new Set(changes);
    for (const section of this.sections) {
      if (section.needs.some((need) => changed.has(need))) this.stale.add(section);
    }
    this.schedule();
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(BUDGET);
    });
  }

  /** Updates what is stale; what does not fit into `budget` milliseconds, with the next frame. */
  private draw(budget: number): void {
    this.theme.attached();
    const { state, problem } = this.store;
    setText(this.problem, problem);
    setHidden(this.problem, !problem);
    setHidden(this.body, !state);
    if (!state) return; // All are stale when there is one.
    const end = performance.now() + budget;
    for (const section of [...this.stale]) {
      this.stale.delete(section);
      section.update(state, end);
      if (performance.now() >= end) break;
    }
    if (this.stale.size) this.schedule();
  }
}

/** The table of servers, and under it what is in their tables. */
function makeServers(root: HTMLElement, context: Context): Section[] {
  const servers = new Servers(root, context);
  return [servers, new TableViews(servers.body, context)];
}

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
    this.state = makeWord('psnb-state', top);
    this.state.setAttribute('role', 'status');
    this.place = makeWord('psnb-place', top);
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
    figure('validating', 'validating', 'Parts of the validation dataset that are done');
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
    const validating = training?.validating;
    // In its place, so that what is next to it stays near: all batches of the epoch are used.
    this.show('batch', training && !validating ? formatOf(training.batch, training.batches) : '');
    this.show('validating', validating ? formatParts(validating) : '');
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
