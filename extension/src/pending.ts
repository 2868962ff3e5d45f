// Commands that are under way: each ends with its reply, or with a reason after a while.

import { clock, type Clock } from './connection';
import { VERSION, type Reply } from './protocol';

/** Milliseconds after which a command is taken for lost. */
export const LIMIT = 10_000;

interface Waiting {
  coordinator: string;
  finish: (reply: Reply) => void;
}

/** A reply that a view writes itself, because none will come. */
export function failure(id: string, coordinator: string, error: string): Reply {
  return { type: 'reply', version: VERSION, id, coordinator, error, result: '' };
}

export class Pending {
  constructor(private readonly time: Clock = clock) {}

  /** Wait for the reply to `id`; the promise never fails, what went wrong is in the reply. */
  add(id: string, coordinator: string, late: string): Promise<Reply> {
    return new Promise((resolve) => {
      const cancel = this.time.after(LIMIT, () => this.settle(failure(id, coordinator, late)));
      this.waiting.set(id, {
        coordinator,
        finish: (reply) => {
          cancel();
          resolve(reply);
        },
      });
    });
  }

  settle(reply: Reply): void {
    const waiting = this.waiting.get(reply.id);
    this.waiting.delete(reply.id);
    waiting?.finish(reply);
  }

  /** Nothing that is under way will be answered any more. */
  abandon(reason: string): void {
    for (const [id, { coordinator }] of [...this.waiting]) {
      this.settle(failure(id, coordinator, reason));
    }
  }

  private readonly waiting = new Map<string, Waiting>();
}
