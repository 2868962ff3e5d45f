// The wire contract between coordinators and their views; the twin of psnb/_src/monitor/protocol.py,
// which explains it. tests/monitor/fixtures/protocol.json has an example of each message.

export const VERSION = 1;

/** Base64 of little-endian float64. */
export type Packed = string;

/** A number on its own, where JSON has no NaN and no infinities. */
export type Num = number | 'nan' | 'inf' | '-inf';

/** How a state is to be taken; a view has one colour for each. */
export type Tone = 'good' | 'busy' | 'waiting' | 'bad' | 'quiet';

/** How far training is, or was when it ended. */
export interface Training {
  epoch: number | null; // From 1 on; null of run_epoch.
  epochs: number | null;
  batch: number;
  batches: number | null; // Null until that is known.
}

export interface Summary {
  time: number;
  state: string;
  tone: Tone;
  meaning: string;
  elapsed: number;
  eta: Num | null;
  training: Training | null; // Null if there was none.
  examples: Num | null;
  examples_per_second: Num | null;
  closures_per_second: Num;
  queued: number;
  in_flight: number;
  completed: number;
  failed: number;
  cancelled: number;
  retried: number;
  workers_lost: number; // So far, those that are back included.
  servers_lost: number;
  staleness_mean: Num;
  staleness_max: number;
  phases: number[];
}

export interface WorkerRow {
  index: number;
  name: string;
  address: string;
  host: string;
  state: string;
  tone: Tone;
  in_flight: number;
  completed: number;
  failed: number;
  closures_per_second: Num;
  busy: Num;
  memory: number | null;
  last_error: string;
  activity: string;
  running_since: number | null;
  phases: number[];
}

export interface ServerRow {
  name: string;
  address: string;
  state: string;
  tone: Tone;
  shards: number;
  bytes: number;
  pulls_per_second: Num;
  pushes_per_second: Num;
  staleness: Num;
}

export interface Metric {
  name: string;
  count: number;
  last: Num;
  smoothed: Num;
  start: number;
  steps: Packed;
  times: Packed;
  values: Packed;
  averages: Packed;
}

export interface Span {
  worker: number;
  start: number;
  end: number;
  closures: number;
  failed: number;
}

export interface FailureRow {
  number: number;
  time: number;
  worker: string;
  closure: string;
  error: string;
  traceback: string;
}

export interface EventRow {
  time: number;
  kind: string;
  worker: string;
  message: string;
}

export interface OptimizerRow {
  parameter: string;
  optimizer: string;
  learning_rate: Num;
  schedule: string;
}

export interface Checkpoint {
  state: 'none' | 'saving' | 'saved' | 'failed';
  path: string;
  share: number;
  error: string;
  held: number;
}

export type CommandName =
  | 'pause'
  | 'resume'
  | 'drain'
  | 'cancel_queued'
  | 'stop_training'
  | 'checkpoint'
  | 'set_learning_rate'
  | 'add_worker'
  | 'retire_worker';

export interface Identity {
  name: string;
  kernel: string;
  process: number;
  host: string;
  cluster: string;
  cluster_id: string; // Empty if it is not known.
  cluster_started: number; // Seconds since the epoch; 0 if it is not known.
  dashboard: string;
  started: number;
}

export interface Update {
  type: 'update';
  version: number;
  coordinator: string;
  sequence: number;
  full: boolean;
  summary: Summary;
  notice?: string;
  starved?: string;
  identity?: Identity;
  depth?: [number, number, number][];
  workers?: WorkerRow[];
  servers?: ServerRow[];
  metrics?: Metric[];
  timeline?: Span[];
  failures?: FailureRow[];
  events?: EventRow[];
  optimizers?: OptimizerRow[];
  checkpoint?: Checkpoint;
  controls?: Partial<Record<CommandName, string>>;
}

export interface Hello {
  type: 'hello';
  version: number;
}

export interface Command {
  type: 'command';
  version: number;
  id: string;
  coordinator: string;
  command: CommandName;
  arguments: Record<string, string | number>;
}

export interface Reply {
  type: 'reply';
  version: number;
  id: string;
  coordinator: string;
  error: string;
  result: string;
}

export interface Source {
  coordinator: string;
  kind: 'kernel' | 'scheduler';
  notebook: string;
  kernel: string;
  address: string;
  gone: string;
}

export interface Scheduler {
  address: string; // Of its dashboard.
  cluster: string; // Its own; empty until it is known.
  cluster_id: string;
  cluster_started: number;
  coordinators: number; // That have reported to it, and live.
  error: string;
}

export interface Sources {
  type: 'sources';
  version: number;
  sources: Source[];
  schedulers: Scheduler[];
}

export interface Attach {
  type: 'attach' | 'detach';
  version: number;
  id: string;
  address: string;
}

/** What a view hears: from the kernel through the widget's comm, or from the hub. */
export type FromSource = Update | Reply | Sources;

/** What a view says. */
export type FromView = Hello | Command | Attach;
