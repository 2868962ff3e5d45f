// What a view knows of a coordinator: folds the messages into one state and notifies its
// listeners of what has changed. No page is needed for it.

import type {
  CheckpointRow,
  CommandName,
  CommandReply,
  EpochMark,
  EventRow,
  FailureRow,
  Identity,
  Metric,
  Num,
  OptimizerRow,
  RewindMark,
  ServerRow,
  Slices,
  Span,
  Summary,
  Update,
  WorkerRow,
} from '../protocol';

/** Seconds of the depth of the queue and of the timeline that are kept. */
export const WINDOW = 60;

/** Failures kept, and events. */
export const MAX_ROWS = 200;

// While the answer to a hello is outstanding (a busy kernel may be slow), this many further
// updates pass before it is said again.
const PATIENCE = 20;

// The states that a coordinator, and its workers and servers, are given when it is gone.
const GONE = 'gone';
const UNKNOWN = 'unknown';

export interface MetricState {
  name: string;
  count: number;
  last: number | null; // null before there is one
  smoothed: number | null;
  series: Series;
  /** Grows with each change. */
  revision: number;
}

/** All there is to show. Rows are replaced when they change, never written to. */
export interface State {
  coordinator: string;
  summary: Summary;
  notice: string;
  starved: string;
  identity: Identity;
  depth: [number, number, number][];
  workers: Map<number, WorkerRow>;
  servers: ServerRow[];
  metrics: Map<string, MetricState>;
  /** Where epochs began. */
  epochs: EpochMark[];
  /** Where parameters went back; each series has them, too. */
  rewinds: RewindMark[];
  slices: Slices[];
  /** By worker, each in the order of the starts. */
  timeline: Map<number, Span[]>;
  failures: FailureRow[];
  events: EventRow[];
  optimizers: OptimizerRow[];
  /** The names of embeddings. */
  tables: string[];
  checkpoint: CheckpointRow;
  controls: Partial<Record<CommandName, string>>;
}

/** A part of the state, as updates have them; `problem` is the store's own. */
export type Part = Exclude<keyof State, 'coordinator'> | 'problem';

export const PARTS: readonly Part[] = [
  'problem',
  'summary',
  'notice',
  'starved',
  'identity',
  'depth',
  'workers',
  'servers',
  'metrics',
  'epochs',
  'rewinds',
  'slices',
  'timeline',
  'failures',
  'events',
  'optimizers',
  'tables',
  'checkpoint',
  'controls',
];

/** The parts that an update replaces, if it has them. */
const WHOLE = [
  'notice',
  'starved',
  'identity',
  'servers',
  'epochs',
  'rewinds',
  'slices',
  'optimizers',
  'tables',
  'checkpoint',
  'controls',
] as const;

export interface Listener {
  changed(parts: ReadonlySet<Part>): void;
  replied?(reply: CommandReply): void;
}

/** A number from its form in JSON. */
export function toNumber(value: Num): number {
  if (typeof value === 'number') return value;
  return value === 'inf' ? Infinity : value === '-inf' ? -Infinity : NaN;
}

function empty(update: Update): State {
  return {
    coordinator: update.coordinator,
    summary: update.summary,
    notice: '',
    starved: '',
    identity: {
      name: '',
      kernel: '',
      process: 0,
      host: '',
      cluster: '',
      cluster_id: '',
      cluster_started: 0,
      dashboard: '',
      started: update.summary.time - update.summary.elapsed,
    },
    depth: [],
    workers: new Map(),
    servers: [],
    metrics: new Map(),
    epochs: [],
    rewinds: [],
    slices: [],
    timeline: new Map(),
    failures: [],
    events: [],
    optimizers: [],
    tables: [],
    checkpoint: { state: 'none', path: '', share: 0, error: '', held: 0 },
    controls: {},
  };
}

export class Store {
  /** Why nothing is shown; empty if something is. */
  problem = 'Waiting for the coordinator.';

  private current: State | null = null;
  private sequence = 0;
  private ended = false; // the coordinator is gone, and nothing was heard since
  private missed = 0; // updates since a hello that is not answered yet; 0 if none is
  private readonly listeners = new Set<Listener>();

  /** `hello` is called when a full update is needed: one was missed, or there was none yet. */
  constructor(private readonly hello: () => void) {}

  /** What to show; null as long as there is nothing, for the reason in `problem`. */
  get state(): State | null {
    return this.problem ? null : this.current;
  }

  /** Notifies a listener of all changes from now on; returns what ends that. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Takes a message of the coordinator. */
  accept(message: Update | CommandReply): void {
    if (message.type === 'update') {
      this.update(message);
      return;
    }
    for (const listener of this.listeners) listener.replied?.(message);
  }

  /** Shows nothing but a reason, until the next full update. */
  fail(problem: string): void {
    this.problem = problem;
    this.current = null;
    this.missed = 0;
    this.notify(new Set(PARTS));
  }

  /**
   * Shows the last state, as of a coordinator that is gone: nothing can be asked of it. One that
   * has announced its own end, as it does when it is closed, keeps its state.
   */
  end(why: string): void {
    const state = this.current;
    if (!state || this.ended) return;
    this.ended = true;
    if (state.summary.tone !== 'quiet') {
      state.summary = { ...state.summary, state: GONE, tone: 'quiet', meaning: why, eta: null };
      state.notice = why;
    }
    const unknown = { state: UNKNOWN, tone: 'quiet' } as const;
    for (const [index, row] of state.workers) {
      if (row.tone !== 'quiet') state.workers.set(index, { ...row, ...unknown });
    }
    state.servers = state.servers.map((row) => ({ ...row, ...unknown }));
    state.controls = Object.fromEntries(Object.keys(state.controls).map((name) => [name, why]));
    this.notify(new Set<Part>(['summary', 'notice', 'workers', 'servers', 'controls']));
  }

  private update(update: Update): void {
    const gap =
      !this.current ||
      update.coordinator !== this.current.coordinator ||
      update.sequence !== this.sequence + 1 ||
      this.ended; // then some of the state was made up here
    this.sequence = update.sequence;
    this.ended = false;
    if (update.full) {
      this.missed = 0;
    } else if (gap || this.missed) {
      if (this.missed % PATIENCE === 0) this.hello();
      this.missed++;
    }
    if (update.full) {
      this.current = empty(update);
      this.problem = '';
    } else if (update.coordinator !== this.current?.coordinator) {
      return; // Nothing that this could be added to.
    }
    // After a gap, what can be taken is taken: the answer may have to wait for a busy kernel.
    this.notify(this.fold(this.current, update));
  }

  private fold(state: State, update: Update): Set<Part> {
    const changed = new Set<Part>(update.full ? PARTS : ['summary']);
    state.summary = update.summary;
    for (const part of WHOLE) {
      if (update[part] === undefined) continue;
      Object.assign(state, { [part]: update[part] });
      changed.add(part);
    }
    this.foldDepth(state, update, changed);
    for (const row of update.workers ?? []) {
      state.workers.set(row.index, row);
      changed.add('workers');
    }
    for (const metric of update.metrics ?? []) {
      foldMetric(state.metrics, metric);
      changed.add('metrics');
    }
    for (const metric of state.metrics.values()) {
      if (metric.series.rewinds === state.rewinds) continue;
      metric.series.rewinds = state.rewinds;
      metric.revision++;
    }
    if (update.timeline) {
      for (const span of update.timeline) foldSpan(state.timeline, span);
      changed.add('timeline');
    }
    forget(state, changed);
    if (update.failures?.length) {
      const newest = state.failures.at(-1)?.number ?? -1;
      const rows = update.failures.filter((row) => row.number > newest);
      state.failures = [...state.failures, ...rows].slice(-MAX_ROWS);
      changed.add('failures');
    }
    if (update.events?.length) {
      state.events = [...state.events, ...update.events].slice(-MAX_ROWS);
      changed.add('events');
    }
    return changed;
  }

  private foldDepth(state: State, update: Update, changed: Set<Part>): void {
    if (update.depth) state.depth = update.depth.slice();
    const { time, queued, in_flight } = update.summary;
    const last = state.depth.at(-1);
    if (!last || last[0] < time) state.depth.push([time, queued, in_flight]);
    while ((state.depth[0]?.[0] ?? time) < time - WINDOW) state.depth.shift();
    changed.add('depth');
  }

  private notify(parts: ReadonlySet<Part>): void {
    for (const listener of this.listeners) listener.changed(parts);
  }
}

function foldMetric(metrics: Map<string, MetricState>, metric: Metric): void {
  let state = metrics.get(metric.name);
  if (!state) {
    state = { name: metric.name, count: 0, last: null, smoothed: null, series: new Series(), revision: 0 };
    metrics.set(metric.name, state);
  }
  state.count = metric.count;
  state.last = toNumber(metric.last);
  state.smoothed = toNumber(metric.smoothed);
  state.series.append(metric);
  state.revision++;
}

function foldSpan(timeline: Map<number, Span[]>, span: Span): void {
  const spans = timeline.get(span.worker);
  if (!spans) {
    timeline.set(span.worker, [span]);
    return;
  }
  // New ones and those that still grow are at the end.
  let i = spans.length;
  while (i > 0 && (spans[i - 1]?.start ?? -Infinity) > span.start) i--;
  const same = spans[i - 1]?.start === span.start;
  spans.splice(same ? i - 1 : i, same ? 1 : 0, span);
}

/** Drops the spans that ended more than a minute ago. */
function forget(state: State, changed: Set<Part>): void {
  const oldest = state.summary.time - WINDOW;
  for (const [worker, spans] of state.timeline) {
    let gone = 0;
    while (gone < spans.length && (spans[gone]?.end ?? oldest) < oldest) gone++;
    if (!gone) continue;
    changed.add('timeline');
    spans.splice(0, gone);
    if (!spans.length) state.timeline.delete(worker);
  }
}

/** Points kept of a metric; once there are more, every second one goes. */
export const MAX_POINTS = 65_536;

const FIRST_CAPACITY = 256;

/** Decodes a packed series: little-endian, as every machine is that runs a browser. */
export function unpack(packed: string): Float64Array {
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float64Array(bytes.buffer, 0, bytes.length >> 3);
}

/** Points that are drawn as one line: from an index to before another one. */
export interface Stretch {
  readonly from: number;
  readonly to: number;
  /** How often parameters had gone back before. */
  readonly branch: number;
  /** Whether they went back to a moment before these points. */
  readonly abandoned: boolean;
}

/** The points of one metric, in columns that grow. */
export class Series {
  steps = new Float64Array(FIRST_CAPACITY);
  times = new Float64Array(FIRST_CAPACITY);
  values = new Float64Array(FIRST_CAPACITY);
  averages = new Float64Array(FIRST_CAPACITY);
  /** Points in the columns; what lies behind them means nothing. */
  length = 0;
  /** Points that the source has sent; more than `length` if some were missed or thinned out. */
  total = 0;
  /** Whether all values are whole numbers, as counts are; what is not finite is left aside. */
  whole = true;
  /** Where parameters went back. */
  rewinds: readonly RewindMark[] = [];

  /**
   * Takes the points of a message. Those that are here already are left out; where some were
   * missed the curve goes on all the same, until a full update brings all.
   */
  append(points: Pick<Metric, 'start' | 'steps' | 'times' | 'values' | 'averages'>): void {
    if (points.start === 0) {
      this.length = this.total = 0;
      this.whole = true;
    }
    const columns = [points.steps, points.times, points.values, points.averages].map(unpack);
    const [steps, times, values, averages] = columns;
    if (!steps || !times || !values || !averages) return;
    const count = Math.min(...columns.map((column) => column.length));
    const known = Math.min(count, Math.max(0, this.total - points.start));
    this.reserve(this.length + count - known);
    this.steps.set(steps.subarray(known, count), this.length);
    this.times.set(times.subarray(known, count), this.length);
    this.values.set(values.subarray(known, count), this.length);
    this.whole &&= !values.some((value) => Number.isFinite(value) && !Number.isInteger(value));
    this.averages.set(averages.subarray(known, count), this.length);
    this.length += count - known;
    this.total = Math.max(this.total, points.start + count);
    while (this.length > MAX_POINTS) this.thin();
  }

  /** The index of the last point whose place, by step or by time, is not after `place`; or -1. */
  at(place: number, byTime: boolean): number {
    const places = byTime ? this.times : this.steps;
    let begin = 0;
    let end = this.length;
    while (begin < end) {
      const middle = (begin + end) >> 1;
      if ((places[middle] ?? Infinity) <= place) begin = middle + 1;
      else end = middle;
    }
    return begin - 1;
  }

  /**
   * What is drawn in one, in its order; none is empty. psnb/_src/monitor/branches.py, which decides
   * what is abandoned, has the same for figures.
   */
  parts(): Stretch[] {
    const found: Stretch[] = [];
    let from = 0;
    const add = (time: number, branch: number, abandoned: boolean): void => {
      const to = this.at(time, true) + 1;
      if (to <= from) return;
      found.push({ from, to, branch, abandoned });
      from = to;
    };
    for (const [branch, { time, kept }] of this.rewinds.entries()) {
      add(kept, branch, false);
      add(time, branch, true);
    }
    add(Infinity, this.rewinds.length, false);
    return found;
  }

  private reserve(length: number): void {
    if (length <= this.steps.length) return;
    const capacity = Math.max(length, 2 * this.steps.length);
    const grown = (column: Float64Array): Float64Array<ArrayBuffer> => {
      const copy = new Float64Array(capacity);
      copy.set(column.subarray(0, this.length));
      return copy;
    };
    this.steps = grown(this.steps);
    this.times = grown(this.times);
    this.values = grown(this.values);
    this.averages = grown(this.averages);
  }

  private thin(): void {
    const kept = this.length >> 1;
    for (const column of [this.steps, this.times, this.values, this.averages]) {
      for (let i = 0; i < kept; i++) column[i] = column[2 * i + 1] ?? NaN;
    }
    this.length = kept;
  }
}
