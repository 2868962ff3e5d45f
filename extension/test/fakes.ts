// What tests move by hand: a clock, sockets, and the messages of a coordinator.

import type { Clock, Socket } from '../src/connection';
import { Series, type MetricState } from '../src/dashboard/store';
import { VERSION, type Source, type Update } from '../src/protocol';

export class FakeClock implements Clock {
  /** Milliseconds of all calls that wait. */
  get waiting(): number[] {
    return this.calls.map(({ due }) => due - this.now);
  }

  after(milliseconds: number, call: () => void): () => void {
    const entry = { due: this.now + milliseconds, call };
    this.calls.push(entry);
    return () => {
      this.calls = this.calls.filter((other) => other !== entry);
    };
  }

  advance(milliseconds: number): void {
    this.now += milliseconds;
    const due = this.calls.filter((entry) => entry.due <= this.now);
    this.calls = this.calls.filter((entry) => entry.due > this.now);
    for (const { call } of due) call();
  }

  private now = 0;
  private calls: { due: number; call: () => void }[] = [];
}

export class FakeSocket implements Socket {
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: string[] = [];
  closed = false;

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.closed = true;
  }

  hear(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  /** The id of a message that was sent. */
  id(index: number): string {
    return String(this.messages[index]?.['id']);
  }

  /** The messages sent so far, decoded. */
  get messages(): Record<string, unknown>[] {
    return this.sent.map((text) => JSON.parse(text) as Record<string, unknown>);
  }
}

/** All sockets that were opened through `open`. */
export class FakeServer {
  readonly sockets: FakeSocket[] = [];

  readonly open = (): FakeSocket => {
    const socket = new FakeSocket();
    this.sockets.push(socket);
    return socket;
  };

  get last(): FakeSocket {
    const socket = this.sockets.at(-1);
    if (!socket) throw new Error('no socket was opened');
    return socket;
  }
}

/** Lets all promises that can settle do so. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export const SOURCE: Source = {
  coordinator: 'c1',
  kind: 'kernel',
  notebook: 'deep/train.ipynb',
  kernel: 'k1',
  address: '',
  gone: '',
};

export function update(changes: Partial<Update> = {}): Update {
  return {
    type: 'update',
    version: VERSION,
    coordinator: 'c1',
    sequence: 1,
    full: true,
    summary: {
      time: 1000,
      state: 'running',
      tone: 'busy',
      meaning: 'Closures run or wait.',
      elapsed: 10,
      eta: null,
      training: null,
      examples: null,
      examples_per_second: null,
      closures_per_second: 120,
      queued: 7,
      in_flight: 3,
      completed: 20,
      failed: 0,
      cancelled: 0,
      retried: 0,
      workers_lost: 0,
      servers_lost: 0,
      staleness_mean: 'nan',
      staleness_max: 0,
      phases: [0, 0, 0, 0, 0],
    },
    controls: { pause: '', resume: 'it is not paused' },
    ...changes,
  };
}

/** Encodes a series as coordinators do. */
export function pack(values: ArrayLike<number>): string {
  return Buffer.from(Float64Array.from(values).buffer).toString('base64');
}

/** A metric with these values, each its own average, at steps that are times as well. */
export function metric(name: string, values: Record<number, number>): MetricState {
  const places = pack(Object.keys(values).map(Number));
  const series = new Series();
  const numbers = pack(Object.values(values));
  series.append({ start: 0, steps: places, times: places, values: numbers, averages: numbers });
  return { name, count: series.length, last: NaN, smoothed: NaN, series, revision: 1 };
}
