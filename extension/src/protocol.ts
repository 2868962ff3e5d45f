// The wire contract between coordinators and their views, written by
// `python -m extension.write_protocol` from psnb/_src/monitor/protocol.py, which explains it.

export const VERSION = 1;

export type Packed = string;

export type Num = number | '-inf' | 'inf' | 'nan';

export type Tone = 'bad' | 'busy' | 'good' | 'quiet' | 'waiting';

export type CommandName = 'add_worker' | 'cancel_queued' | 'checkpoint' | 'describe_table' | 'drain' | 'look_up_row' | 'pause' | 'resume' | 'retire_worker' | 'rewind' | 'set_learning_rate' | 'stop_training' | 'worker_output';

/** What a coordinator sends to its views. A part that is missing has not changed. */
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
  epochs?: EpochMark[];
  rewinds?: RewindMark[];
  slices?: Slices[];
  timeline?: Span[];
  failures?: FailureRow[];
  events?: EventRow[];
  optimizers?: OptimizerRow[];
  tables?: string[];
  checkpoint?: CheckpointRow;
  controls?: Record<string, string>;
}

/** The newest checkpoint that was asked for. */
export interface CheckpointRow {
  state: 'failed' | 'none' | 'saved' | 'saving';
  path: string;
  share: number;
  error: string;
  held: number;
}

/** Where an epoch began; the list of them is always whole. */
export interface EpochMark {
  epoch: number;
  step: number;
  time: number;
}

/** Something that happened; to be appended. */
export interface EventRow {
  time: number;
  kind: string;
  worker: string;
  message: string;
}

/** A closure that raised; to be appended. */
export interface FailureRow {
  number: number;
  time: number;
  worker: string;
  closure: string;
  error: string;
  traceback: string;
}

/** The identity of a coordinator; in full updates. */
export interface Identity {
  name: string;
  kernel: string;
  process: number;
  host: string;
  cluster: string;
  cluster_id: string;
  cluster_started: number;
  dashboard: string;
  started: number;
}

/** One metric that closures report: its figures now, and points to append to its series. */
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

/** The optimizer of one parameter; the list of them is always whole. */
export interface OptimizerRow {
  parameter: string;
  optimizer: string;
  learning_rate: Num;
  schedule: string;
}

/** Where parameters went back; the list of them is always whole. */
export interface RewindMark {
  step: number;
  time: number;
  kept: number;
}

/** One parameter server; the list of them is always whole. */
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
  cpu: Num | null;
  memory: number | null;
  memory_limit: number | null;
}

/** The values of a metric by slice; the list of them is always whole. */
export interface Slices {
  metric: string;
  count: number;
  rows: SliceRow[];
  others: SliceRow | null;
}

/** One slice of a metric. */
export interface SliceRow {
  slice: string;
  value: Num;
  examples: number;
}

/** The coordinator now; in every update. */
export interface Summary {
  time: number;
  state: string;
  tone: Tone;
  meaning: string;
  elapsed: number;
  eta: Num | null;
  training: Training | null;
  examples: Num | null;
  examples_per_second: Num | null;
  closures_per_second: Num;
  queued: number;
  in_flight: number;
  completed: number;
  failed: number;
  cancelled: number;
  retried: number;
  workers_lost: number;
  servers_lost: number;
  staleness_mean: Num;
  staleness_max: number;
  phases: number[];
}

/** How far training is, or was when it ended. */
export interface Training {
  epoch: number | null;
  epochs: number | null;
  batch: number;
  batches: number | null;
  validating: [number, number] | null;
}

/** Consecutive closures on one worker, without a visible gap. */
export interface Span {
  worker: number;
  start: number;
  end: number;
  closures: number;
  failed: number;
}

/** One worker; it replaces the row with the same index that a view has. */
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
  examples_per_second: Num | null;
  cpu: Num | null;
  memory: number | null;
  gpu_memory: number | null;
  last_error: string;
  activity: string;
  running_since: number | null;
  phases: number[];
}

/** The outcome of a command, or of an invalid message (then ``id`` may be empty). */
export interface CommandReply {
  type: 'reply';
  version: number;
  id: string;
  coordinator: string;
  error: string;
  result: string;
  described?: TableDescribed;
  found?: RowFound;
  output?: OutputFound;
}

/** What the rows of an embedding are like. */
export interface TableDescribed {
  table: string;
  rows: number;
  waiting: number;
  bytes: number;
  edges: Num[];
  counts: number[];
  zeros: number;
  not_finite: number;
  mean: Num;
  ages: [number, number][];
  most_used: [string, Num][];
}

/** One row of an embedding. */
export interface RowFound {
  table: string;
  id: string;
  values: Num[];
  norm: Num;
  unseen_days: Num | null;
  score: Num | null;
  nearest: RowNear[];
}

/** A row near to another one. */
export interface RowNear {
  id: string;
  score: Num;
  norm: Num;
  unseen_days: Num | null;
}

/** The last lines of a worker. */
export interface OutputFound {
  worker: string;
  left_out: number;
  lines: OutputRow[];
}

/** A line that a closure has printed, warned of or logged. */
export interface OutputRow {
  time: number;
  closure: string;
  text: string;
}

/** Hub to panel: all coordinators and schedulers, on connection and after each change. */
export interface Sources {
  type: 'sources';
  version: number;
  sources: Source[];
  schedulers: Scheduler[];
}

/** A scheduler that was attached to the hub. */
export interface Scheduler {
  address: string;
  cluster: string;
  cluster_id: string;
  cluster_started: number;
  coordinators: number;
  error: string;
}

/** A coordinator as the hub knows it. */
export interface Source {
  coordinator: string;
  kind: 'kernel' | 'saved' | 'scheduler';
  notebook: string;
  kernel: string;
  address: string;
  gone: string;
}

/** A view's first message; after a gap, its request to get everything again. */
export interface Hello {
  type: 'hello';
  version: number;
}

/** The user pressed a button. */
export interface Command {
  type: 'command';
  version: number;
  id: string;
  coordinator: string;
  command: CommandName;
  arguments: Record<string, unknown>;
}

/** Panel to hub: attach or detach a scheduler, or list a folder's runs; there is a reply. */
export interface Attach {
  type: 'attach' | 'detach';
  version: number;
  id: string;
  address: string;
}

/** What a view hears: of the kernel through the widget's comm, or of the hub. */
export type FromSource = Update | CommandReply | Sources;

/** What a view says. */
export type FromView = Hello | Command | Attach;

/** JSON schemas of all that a view hears; `$ref` is a name of these. */
export const SCHEMAS = {
  Update: {"type": "object", "properties": {"checkpoint": {"$ref": "CheckpointRow"}, "controls": {"type": "object", "additionalProperties": {"type": "string"}}, "coordinator": {"type": "string"}, "depth": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "integer"}, {"type": "integer"}]}}, "epochs": {"type": "array", "items": {"$ref": "EpochMark"}}, "events": {"type": "array", "items": {"$ref": "EventRow"}}, "failures": {"type": "array", "items": {"$ref": "FailureRow"}}, "full": {"type": "boolean"}, "identity": {"$ref": "Identity"}, "metrics": {"type": "array", "items": {"$ref": "Metric"}}, "notice": {"type": "string"}, "optimizers": {"type": "array", "items": {"$ref": "OptimizerRow"}}, "rewinds": {"type": "array", "items": {"$ref": "RewindMark"}}, "sequence": {"type": "integer"}, "servers": {"type": "array", "items": {"$ref": "ServerRow"}}, "slices": {"type": "array", "items": {"$ref": "Slices"}}, "starved": {"type": "string"}, "summary": {"$ref": "Summary"}, "tables": {"type": "array", "items": {"type": "string"}}, "timeline": {"type": "array", "items": {"$ref": "Span"}}, "type": {"enum": ["update"]}, "version": {"type": "integer"}, "workers": {"type": "array", "items": {"$ref": "WorkerRow"}}}, "required": ["coordinator", "full", "sequence", "summary", "type", "version"]},
  CheckpointRow: {"type": "object", "properties": {"error": {"type": "string"}, "held": {"type": "number"}, "path": {"type": "string"}, "share": {"type": "number"}, "state": {"enum": ["failed", "none", "saved", "saving"]}}, "required": ["error", "held", "path", "share", "state"]},
  EpochMark: {"type": "object", "properties": {"epoch": {"type": "integer"}, "step": {"type": "integer"}, "time": {"type": "number"}}, "required": ["epoch", "step", "time"]},
  EventRow: {"type": "object", "properties": {"kind": {"type": "string"}, "message": {"type": "string"}, "time": {"type": "number"}, "worker": {"type": "string"}}, "required": ["kind", "message", "time", "worker"]},
  FailureRow: {"type": "object", "properties": {"closure": {"type": "string"}, "error": {"type": "string"}, "number": {"type": "integer"}, "time": {"type": "number"}, "traceback": {"type": "string"}, "worker": {"type": "string"}}, "required": ["closure", "error", "number", "time", "traceback", "worker"]},
  Identity: {"type": "object", "properties": {"cluster": {"type": "string"}, "cluster_id": {"type": "string"}, "cluster_started": {"type": "number"}, "dashboard": {"type": "string"}, "host": {"type": "string"}, "kernel": {"type": "string"}, "name": {"type": "string"}, "process": {"type": "integer"}, "started": {"type": "number"}}, "required": ["cluster", "cluster_id", "cluster_started", "dashboard", "host", "kernel", "name", "process", "started"]},
  Metric: {"type": "object", "properties": {"averages": {"contentEncoding": "base64", "type": "string"}, "count": {"type": "integer"}, "last": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "name": {"type": "string"}, "smoothed": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "start": {"type": "integer"}, "steps": {"contentEncoding": "base64", "type": "string"}, "times": {"contentEncoding": "base64", "type": "string"}, "values": {"contentEncoding": "base64", "type": "string"}}, "required": ["averages", "count", "last", "name", "smoothed", "start", "steps", "times", "values"]},
  OptimizerRow: {"type": "object", "properties": {"learning_rate": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "optimizer": {"type": "string"}, "parameter": {"type": "string"}, "schedule": {"type": "string"}}, "required": ["learning_rate", "optimizer", "parameter", "schedule"]},
  RewindMark: {"type": "object", "properties": {"kept": {"type": "number"}, "step": {"type": "integer"}, "time": {"type": "number"}}, "required": ["kept", "step", "time"]},
  ServerRow: {"type": "object", "properties": {"address": {"type": "string"}, "bytes": {"type": "integer"}, "cpu": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "memory": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "memory_limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "name": {"type": "string"}, "pulls_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "pushes_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "shards": {"type": "integer"}, "staleness": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "state": {"type": "string"}, "tone": {"enum": ["bad", "busy", "good", "quiet", "waiting"]}}, "required": ["address", "bytes", "cpu", "memory", "memory_limit", "name", "pulls_per_second", "pushes_per_second", "shards", "staleness", "state", "tone"]},
  Slices: {"type": "object", "properties": {"count": {"type": "integer"}, "metric": {"type": "string"}, "others": {"anyOf": [{"$ref": "SliceRow"}, {"type": "null"}]}, "rows": {"type": "array", "items": {"$ref": "SliceRow"}}}, "required": ["count", "metric", "others", "rows"]},
  SliceRow: {"type": "object", "properties": {"examples": {"type": "integer"}, "slice": {"type": "string"}, "value": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}}, "required": ["examples", "slice", "value"]},
  Summary: {"type": "object", "properties": {"cancelled": {"type": "integer"}, "closures_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "completed": {"type": "integer"}, "elapsed": {"type": "number"}, "eta": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "examples": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "examples_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "failed": {"type": "integer"}, "in_flight": {"type": "integer"}, "meaning": {"type": "string"}, "phases": {"type": "array", "items": {"type": "number"}}, "queued": {"type": "integer"}, "retried": {"type": "integer"}, "servers_lost": {"type": "integer"}, "staleness_max": {"type": "integer"}, "staleness_mean": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "state": {"type": "string"}, "time": {"type": "number"}, "tone": {"enum": ["bad", "busy", "good", "quiet", "waiting"]}, "training": {"anyOf": [{"$ref": "Training"}, {"type": "null"}]}, "workers_lost": {"type": "integer"}}, "required": ["cancelled", "closures_per_second", "completed", "elapsed", "eta", "examples", "examples_per_second", "failed", "in_flight", "meaning", "phases", "queued", "retried", "servers_lost", "staleness_max", "staleness_mean", "state", "time", "tone", "training", "workers_lost"]},
  Training: {"type": "object", "properties": {"batch": {"type": "integer"}, "batches": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "epoch": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "epochs": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "validating": {"anyOf": [{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}]}, {"type": "null"}]}}, "required": ["batch", "batches", "epoch", "epochs", "validating"]},
  Span: {"type": "object", "properties": {"closures": {"type": "integer"}, "end": {"type": "number"}, "failed": {"type": "integer"}, "start": {"type": "number"}, "worker": {"type": "integer"}}, "required": ["closures", "end", "failed", "start", "worker"]},
  WorkerRow: {"type": "object", "properties": {"activity": {"type": "string"}, "address": {"type": "string"}, "busy": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "closures_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "completed": {"type": "integer"}, "cpu": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "examples_per_second": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "failed": {"type": "integer"}, "gpu_memory": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "host": {"type": "string"}, "in_flight": {"type": "integer"}, "index": {"type": "integer"}, "last_error": {"type": "string"}, "memory": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "name": {"type": "string"}, "phases": {"type": "array", "items": {"type": "number"}}, "running_since": {"anyOf": [{"type": "number"}, {"type": "null"}]}, "state": {"type": "string"}, "tone": {"enum": ["bad", "busy", "good", "quiet", "waiting"]}}, "required": ["activity", "address", "busy", "closures_per_second", "completed", "cpu", "examples_per_second", "failed", "gpu_memory", "host", "in_flight", "index", "last_error", "memory", "name", "phases", "running_since", "state", "tone"]},
  CommandReply: {"type": "object", "properties": {"coordinator": {"type": "string"}, "described": {"$ref": "TableDescribed"}, "error": {"type": "string"}, "found": {"$ref": "RowFound"}, "id": {"type": "string"}, "output": {"$ref": "OutputFound"}, "result": {"type": "string"}, "type": {"enum": ["reply"]}, "version": {"type": "integer"}}, "required": ["coordinator", "error", "id", "result", "type", "version"]},
  TableDescribed: {"type": "object", "properties": {"ages": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}]}}, "bytes": {"type": "integer"}, "counts": {"type": "array", "items": {"type": "integer"}}, "edges": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}}, "mean": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "most_used": {"type": "array", "items": {"type": "array", "prefixItems": [{"type": "string"}, {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}]}}, "not_finite": {"type": "integer"}, "rows": {"type": "integer"}, "table": {"type": "string"}, "waiting": {"type": "integer"}, "zeros": {"type": "integer"}}, "required": ["ages", "bytes", "counts", "edges", "mean", "most_used", "not_finite", "rows", "table", "waiting", "zeros"]},
  RowFound: {"type": "object", "properties": {"id": {"type": "string"}, "nearest": {"type": "array", "items": {"$ref": "RowNear"}}, "norm": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "score": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "table": {"type": "string"}, "unseen_days": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}, "values": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}}}, "required": ["id", "nearest", "norm", "score", "table", "unseen_days", "values"]},
  RowNear: {"type": "object", "properties": {"id": {"type": "string"}, "norm": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "score": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}]}, "unseen_days": {"anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}, {"type": "null"}]}}, "required": ["id", "norm", "score", "unseen_days"]},
  OutputFound: {"type": "object", "properties": {"left_out": {"type": "integer"}, "lines": {"type": "array", "items": {"$ref": "OutputRow"}}, "worker": {"type": "string"}}, "required": ["left_out", "lines", "worker"]},
  OutputRow: {"type": "object", "properties": {"closure": {"type": "string"}, "text": {"type": "string"}, "time": {"type": "number"}}, "required": ["closure", "text", "time"]},
  Sources: {"type": "object", "properties": {"schedulers": {"type": "array", "items": {"$ref": "Scheduler"}}, "sources": {"type": "array", "items": {"$ref": "Source"}}, "type": {"enum": ["sources"]}, "version": {"type": "integer"}}, "required": ["schedulers", "sources", "type", "version"]},
  Scheduler: {"type": "object", "properties": {"address": {"type": "string"}, "cluster": {"type": "string"}, "cluster_id": {"type": "string"}, "cluster_started": {"type": "number"}, "coordinators": {"type": "integer"}, "error": {"type": "string"}}, "required": ["address", "cluster", "cluster_id", "cluster_started", "coordinators", "error"]},
  Source: {"type": "object", "properties": {"address": {"type": "string"}, "coordinator": {"type": "string"}, "gone": {"type": "string"}, "kernel": {"type": "string"}, "kind": {"enum": ["kernel", "saved", "scheduler"]}, "notebook": {"type": "string"}}, "required": ["address", "coordinator", "gone", "kernel", "kind", "notebook"]},
};
