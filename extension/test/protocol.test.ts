// The examples of the wire contract fit its types; tests/monitor/test_protocol.py has the same for
// Python.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import examples from '../../tests/monitor/fixtures/protocol.json';
import {
  VERSION,
  type Attach,
  type Checkpoint,
  type Command,
  type CommandName,
  type EventRow,
  type FailureRow,
  type Hello,
  type Identity,
  type Metric,
  type OptimizerRow,
  type Reply,
  type Scheduler,
  type ServerRow,
  type Source,
  type Sources,
  type Span,
  type Summary,
  type Training,
  type Update,
  type WorkerRow,
} from '../src/protocol';

type Check = (value: unknown) => boolean;

// A check for each member of a type: the compiler sees to it that none is missing or too many.
type Members<T> = { [K in keyof Required<T>]: Check };

const text: Check = (value) => typeof value === 'string';
const number: Check = (value) => typeof value === 'number';
const flag: Check = (value) => typeof value === 'boolean';
const one =
  (...choices: unknown[]): Check =>
  (value) =>
    choices.includes(value);
const either =
  (...checks: Check[]): Check =>
  (value) =>
    checks.some((check) => check(value));
const num = either(number, one('nan', 'inf', '-inf'));
const maybe = either(number, one(null));
const maybeNum = either(num, one(null));
const list =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);
const triple: Check = (value) => list(number)(value) && (value as unknown[]).length === 3;

function members<T>(checks: Members<T>, optional: (keyof T)[] = []): Check {
  const known: Record<string, Check> = checks;
  return (value) =>
    typeof value === 'object' &&
    value !== null &&
    Object.entries(value).every(([name, member]) => known[name]?.(member) ?? false) &&
    Object.keys(known).every((name) => name in value || optional.includes(name as keyof T));
}

const tone: Check = (value) =>
  ['good', 'busy', 'waiting', 'bad', 'quiet'].includes(value as string);

const training = members<Training>({
  epoch: maybe,
  epochs: maybe,
  batch: number,
  batches: maybe,
});

const summary = members<Summary>({
  time: number,
  state: text,
  tone,
  meaning: text,
  elapsed: number,
  eta: maybeNum,
  training: either(training, one(null)),
  examples: maybeNum,
  examples_per_second: maybeNum,
  closures_per_second: num,
  queued: number,
  in_flight: number,
  completed: number,
  failed: number,
  cancelled: number,
  retried: number,
  workers_lost: number,
  servers_lost: number,
  staleness_mean: num,
  staleness_max: number,
  phases: list(number),
});

const worker = members<WorkerRow>({
  index: number,
  name: text,
  address: text,
  host: text,
  state: text,
  tone,
  in_flight: number,
  completed: number,
  failed: number,
  closures_per_second: num,
  busy: num,
  memory: maybe,
  last_error: text,
  activity: text,
  running_since: maybe,
  phases: list(number),
});

const server = members<ServerRow>({
  name: text,
  address: text,
  state: text,
  tone,
  shards: number,
  bytes: number,
  pulls_per_second: num,
  pushes_per_second: num,
  staleness: num,
});

const metric = members<Metric>({
  name: text,
  count: number,
  last: num,
  smoothed: num,
  start: number,
  steps: text,
  times: text,
  values: text,
  averages: text,
});

const span = members<Span>({
  worker: number,
  start: number,
  end: number,
  closures: number,
  failed: number,
});

const failure = members<FailureRow>({
  number,
  time: number,
  worker: text,
  closure: text,
  error: text,
  traceback: text,
});

const event = members<EventRow>({ time: number, kind: text, worker: text, message: text });

const optimizer = members<OptimizerRow>({
  parameter: text,
  optimizer: text,
  learning_rate: num,
  schedule: text,
});

const checkpoint = members<Checkpoint>({
  state: one('none', 'saving', 'saved', 'failed'),
  path: text,
  share: number,
  error: text,
  held: number,
});

const identity = members<Identity>({
  name: text,
  kernel: text,
  process: number,
  host: text,
  cluster: text,
  cluster_id: text,
  cluster_started: number,
  dashboard: text,
  started: number,
});

const controls: Members<Record<CommandName, string>> = {
  pause: text,
  resume: text,
  drain: text,
  cancel_queued: text,
  stop_training: text,
  checkpoint: text,
  set_learning_rate: text,
  add_worker: text,
  retire_worker: text,
};

const parts = {
  notice: text,
  starved: text,
  identity,
  depth: list(triple),
  workers: list(worker),
  servers: list(server),
  metrics: list(metric),
  timeline: list(span),
  failures: list(failure),
  events: list(event),
  optimizers: list(optimizer),
  checkpoint,
  controls: members(controls),
};

const version = one(VERSION);
const whole: Members<Update> = {
  type: one('update'),
  version,
  coordinator: text,
  sequence: number,
  full: flag,
  summary,
  ...parts,
};

const command = members<Command>({
  type: one('command'),
  version,
  id: text,
  coordinator: text,
  command: one(...Object.keys(controls)),
  arguments: (value) => Object.values(value as object).every(either(text, number)),
});

const reply = members<Reply>({
  type: one('reply'),
  version,
  id: text,
  coordinator: text,
  error: text,
  result: text,
});

const source = members<Source>({
  coordinator: text,
  kind: one('kernel', 'scheduler'),
  notebook: text,
  kernel: text,
  address: text,
  gone: text,
});

const attach = members<Attach>({ type: one('attach', 'detach'), version, id: text, address: text });
const small = members<Update>(whole, Object.keys(parts) as (keyof typeof parts)[]);

// The hub's own, which no view ever sees.
const batch = members({ version, updates: list(small), replies: list(reply) });
const orders = members({ version, hello: flag, commands: list(command) });

const checks: Members<typeof examples> = {
  update_full: members<Update>(whole),
  update_small: small,
  hello: members<Hello>({ type: one('hello'), version }),
  command,
  reply_ok: reply,
  reply_error: reply,
  sources: members<Sources>({
    type: one('sources'),
    version,
    sources: list(source),
    schedulers: list(
      members<Scheduler>({
        address: text,
        cluster: text,
        cluster_id: text,
        cluster_started: number,
        coordinators: number,
        error: text,
      }),
    ),
  }),
  attach,
  detach: attach,
  batch,
  orders,
};

for (const [name, check] of Object.entries(checks)) {
  test(`the example ${name} fits its type`, () => {
    assert.ok(check(examples[name as keyof typeof examples]));
  });
}

test('an update with a member that is not known does not fit', () => {
  assert.ok(!small({ ...examples.update_small, surprise: 1 }));
});

test('an update without a summary does not fit', () => {
  assert.ok(!small({ ...examples.update_small, summary: undefined }));
});
