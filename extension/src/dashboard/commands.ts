// The commands that one view gives, until the coordinator answers. No page is needed for them.

import { VERSION, type Command, type CommandName, type CommandReply } from '../protocol';
import type { Store } from './store';

/** Milliseconds after which people see that there was no answer. */
export const PATIENCE = 10_000;

/** Milliseconds for which the success of a command is shown. */
export const SHOWN = 8_000;

export const NO_ANSWER =
  'no answer from the kernel: it is busy with a cell, and this front end cannot reach it meanwhile';

const LABELS: Record<CommandName, string> = {
  pause: 'Pause',
  resume: 'Resume',
  drain: 'Drain',
  cancel_queued: 'Cancel queued',
  stop_training: 'Stop training',
  checkpoint: 'Checkpoint',
  set_learning_rate: 'Learning rate',
  add_worker: 'Add worker',
  retire_worker: 'Retire worker',
};

/** What came of a command, for people. */
export interface Outcome {
  text: string;
  bad: boolean;
}

const NOTHING: Outcome = { text: '', bad: false };

interface Pending {
  command: CommandName;
  subject: string;
  timer: ReturnType<typeof setTimeout>;
  done: ((ok: boolean) => void) | undefined;
}

export class Commands {
  /** What came of the last command that ended or got no answer. */
  outcome = NOTHING;

  private forgetting: ReturnType<typeof setTimeout> | undefined;
  private readonly pending = new Map<string, Pending>();
  private readonly ignore: () => void;
  // Unlike crypto.randomUUID this also works on pages without TLS.
  private readonly prefix = Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) =>
    n.toString(36),
  ).join('');
  private count = 0;

  /** `changed` is called when `outcome` or what is under way has changed. */
  constructor(
    private readonly store: Store,
    private readonly send: (command: Command) => void,
    private readonly changed: () => void,
  ) {
    this.ignore = store.listen({
      changed: () => undefined,
      replied: (reply) => {
        this.settle(reply);
      },
    });
  }

  /**
   * Sends a command. `subject` is what it is about where there are several: a worker, a parameter.
   * `done` is called with whether it was carried out.
   */
  give(
    command: CommandName,
    args: Command['arguments'] = {},
    subject = '',
    done?: (ok: boolean) => void,
  ): void {
    const coordinator = this.store.state?.coordinator;
    if (coordinator === undefined || this.underWay(command, subject)) return;
    const id = `${this.prefix}-${++this.count}`;
    const timer = setTimeout(() => {
      this.report(command, subject, NO_ANSWER, true);
    }, PATIENCE);
    this.pending.set(id, { command, subject, timer, done });
    this.show(NOTHING);
    this.send({ type: 'command', version: VERSION, id, coordinator, command, arguments: args });
  }

  /** Shows why a command was not sent at all. */
  refuse(command: CommandName, subject: string, reason: string): void {
    this.report(command, subject, reason, true);
  }

  /** Whether a command was sent and not answered yet. */
  underWay(command: CommandName, subject = ''): boolean {
    for (const pending of this.pending.values()) {
      if (pending.command === command && pending.subject === subject) return true;
    }
    return false;
  }

  dispose(): void {
    this.ignore();
    clearTimeout(this.forgetting);
    for (const { timer } of this.pending.values()) clearTimeout(timer);
    this.pending.clear();
  }

  private settle(reply: CommandReply): void {
    const pending = this.pending.get(reply.id);
    if (!pending) return; // Another view's, or nobody's.
    clearTimeout(pending.timer);
    this.pending.delete(reply.id);
    pending.done?.(!reply.error);
    this.report(pending.command, pending.subject, reply.error || reply.result || 'done', !!reply.error);
  }

  private report(command: CommandName, subject: string, text: string, bad: boolean): void {
    this.show({ text: `${LABELS[command]}${subject && ` ${subject}`}: ${text}`, bad });
    // What went wrong stays until the next command: somebody must do something about it.
    if (!bad) this.forgetting = setTimeout(() => { this.show(NOTHING); }, SHOWN);
  }

  private show(outcome: Outcome): void {
    clearTimeout(this.forgetting);
    this.outcome = outcome;
    this.changed();
  }
}
