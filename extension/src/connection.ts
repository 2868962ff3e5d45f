// A WebSocket to the hub that comes back by itself, and says why when it does not.

import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

/** What is used of a WebSocket. */
export interface Socket {
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: (() => void) | null;
  send(text: string): void;
  close(): void;
}

/** Calls back later; tests have one of their own. */
export interface Clock {
  /** Returns what takes the call back. */
  after(milliseconds: number, call: () => void): () => void;
}

export const clock: Clock = {
  after: (milliseconds, call) => {
    const timer = setTimeout(call, milliseconds);
    return () => clearTimeout(timer);
  },
};

/** Where a connection stands. */
export type Reach =
  { state: 'connecting' } | { state: 'connected' } | ({ state: 'unreachable' } & Obstacle);

/** Why something cannot be reached, and lines to run that help, if there are such. */
export interface Obstacle {
  reason: string;
  remedy: string;
}

export interface ConnectionOptions {
  /** Opens a socket. */
  open: () => Socket;
  /** Finds out why no socket opens: a socket itself does not say. */
  why: () => Promise<Obstacle>;
  clock?: Clock;
}

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 10_000;

/** Milliseconds to wait before the next attempt, after so many that failed in a row. */
export function pause(failures: number): number {
  return Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.max(0, failures - 1));
}

export class Connection implements IDisposable {
  reach: Reach = { state: 'connecting' };
  isDisposed = false;
  /** Emitted with where the connection stands, whenever that changes. */
  readonly changed = new Signal<this, Reach>(this);
  /** Emitted with the text of each message. */
  readonly received = new Signal<this, string>(this);

  private readonly clock: Clock;
  private socket: Socket | null = null;
  private failures = 0;
  private cancelRetry: () => void = () => undefined;

  constructor(private readonly options: ConnectionOptions) {
    this.clock = options.clock ?? clock;
  }

  /** Connect now, also while waiting for the next attempt. */
  connect(): void {
    if (this.isDisposed || this.socket) {
      return;
    }
    this.cancelRetry();
    const socket = this.options.open();
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      this.move({ state: 'connected' });
    };
    socket.onmessage = (event) => {
      if (typeof event.data === 'string') {
        this.received.emit(event.data);
      }
    };
    socket.onclose = () => this.lost();
  }

  /** Send, if connected; says whether it was. */
  send(text: string): boolean {
    if (this.reach.state !== 'connected' || !this.socket) {
      return false;
    }
    this.socket.send(text);
    return true;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    this.cancelRetry();
    if (this.socket) {
      this.socket.onclose = null;
      this.socket.onmessage = null;
      this.socket.onopen = null;
      this.socket.close();
      this.socket = null;
    }
    Signal.clearData(this);
  }

  private lost(): void {
    const opened = this.reach.state === 'connected';
    this.socket = null;
    this.failures += 1;
    if (opened) {
      this.move({ state: 'connecting' });
    } else {
      this.explain(this.failures);
    }
    this.cancelRetry = this.clock.after(pause(this.failures), () => this.connect());
  }

  private explain(failures: number): void {
    void this.options.why().then((obstacle) => {
      // By now another attempt may have opened, or be explaining itself.
      if (!this.isDisposed && this.failures === failures) {
        this.move({ state: 'unreachable', ...obstacle });
      }
    });
  }

  private move(reach: Reach): void {
    this.reach = reach;
    this.changed.emit(reach);
  }
}
