// A clock and sockets that tests move by hand.

import type { Clock, Socket } from '../src/connection';

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
