// The model behind the panel: what the hub on the Jupyter server knows of all coordinators, and the
// way of commands to them. Views listen to its signals and draw.

import { UUID } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { clock, type Clock, type Connection, type Reach } from './connection';
import { Store } from './dashboard/store';
import { decode } from './messages';
import {
  VERSION,
  type Attach,
  type Command,
  type CommandReply,
  type FromView,
  type Scheduler,
  type Source,
} from './protocol';

const MISMATCH: Reach = {
  state: 'unreachable',
  reason:
    'This page and psnb on the Jupyter server are of different versions. ' +
    'Restart the server and reload this page.',
  remedy: '',
};

export class Hub implements IDisposable {
  constructor(
    private readonly connection: Connection,
    time: Clock = clock,
  ) {
    this.pending = new Pending(time);
    connection.changed.connect((_, reach) => this.moved(reach));
    connection.received.connect((_, text) => this.heard(text));
  }

  /** Whether the hub can be reached, and if not, why. */
  get reach(): Reach {
    return this.foreign ? MISMATCH : this.connection.reach;
  }

  /** All coordinators that the hub knows; as they were when it was reached last. */
  get sources(): readonly Source[] {
    return this._sources;
  }

  /** All schedulers that were attached. */
  get schedulers(): readonly Scheduler[] {
    return this._schedulers;
  }

  /** Emitted when reach, sources or schedulers have changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted with the name of a coordinator that has news. */
  get updated(): ISignal<this, string> {
    return this._updated;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** The state of a coordinator; nothing if it is not known or has sent nothing yet. */
  store(coordinator: string): Store | undefined {
    return this.stores.get(coordinator);
  }

  source(coordinator: string): Source | undefined {
    return this._sources.find((source) => source.coordinator === coordinator);
  }

  /** Try to reach the hub now instead of at the next attempt. */
  retry(): void {
    this.connection.connect();
  }

  /** Give a coordinator a command. */
  command(
    coordinator: string,
    command: Command['command'],
    args: Command['arguments'] = {},
  ): Promise<CommandReply> {
    const id = UUID.uuid4();
    return this.ask({
      type: 'command',
      version: VERSION,
      id,
      coordinator,
      command,
      arguments: args,
    });
  }

  /** Watch a scheduler. */
  attach(address: string): Promise<CommandReply> {
    return this.ask({ type: 'attach', version: VERSION, id: UUID.uuid4(), address });
  }

  /** Watch a scheduler no longer. */
  detach(address: string): Promise<CommandReply> {
    return this.ask({ type: 'detach', version: VERSION, id: UUID.uuid4(), address });
  }

  /** Pass on what a dashboard says; what comes of it goes to the coordinator's store. */
  forward(message: FromView): void {
    if (message.type === 'hello') {
      this.connection.send(JSON.stringify(message));
    } else {
      void this.ask(message);
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this.pending.abandon('This page was closed.');
    this.connection.dispose();
    Signal.clearData(this);
  }

  private async ask(message: Command | Attach): Promise<CommandReply> {
    const coordinator = message.type === 'command' ? message.coordinator : '';
    const reply = this.connection.send(JSON.stringify(message))
      ? await this.pending.add(message.id, coordinator, LATE)
      : failure(message.id, coordinator, UNSENT);
    this.stores.get(coordinator)?.accept(reply);
    return reply;
  }

  private moved(reach: Reach): void {
    if (reach.state === 'connected') {
      this.foreign = false;
    } else {
      this.pending.abandon(CUT);
    }
    this._changed.emit();
  }

  private heard(text: string): void {
    const message = decode(text);
    switch (message.type) {
      case 'refused':
        this.foreign = true;
        this._changed.emit();
        break;
      case 'sources':
        this.know(message.sources, message.schedulers);
        break;
      case 'update':
        this.open(message.coordinator).accept(message);
        this._updated.emit(message.coordinator);
        break;
      case 'reply':
        this.pending.settle(message);
        break;
    }
  }

  private know(sources: readonly Source[], schedulers: readonly Scheduler[]): void {
    this._sources = sources;
    this._schedulers = schedulers;
    const known = new Set(sources.map((source) => source.coordinator));
    for (const coordinator of [...this.stores.keys()]) {
      if (!known.has(coordinator)) {
        this.stores.delete(coordinator);
      }
    }
    for (const { coordinator, gone } of sources) {
      if (gone) {
        this.stores.get(coordinator)?.end(gone);
      }
    }
    this._changed.emit();
  }

  private open(coordinator: string): Store {
    let store = this.stores.get(coordinator);
    if (!store) {
      store = new Store(() => this.forward({ type: 'hello', version: VERSION }));
      this.stores.set(coordinator, store);
    }
    return store;
  }

  private readonly pending: Pending;
  private readonly stores = new Map<string, Store>();
  private _sources: readonly Source[] = [];
  private _schedulers: readonly Scheduler[] = [];
  private foreign = false;
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _updated = new Signal<this, string>(this);
}

const LATE = 'No answer within 10 seconds. Its process may be busy or gone; look at its state.';
const UNSENT = 'Not sent: the hub on the Jupyter server cannot be reached.';
const CUT = 'The connection to the Jupyter server broke before an answer came; look at its state.';

/** Milliseconds after which a command is taken for lost. */
export const LIMIT = 10_000;

interface Waiting {
  coordinator: string;
  finish: (reply: CommandReply) => void;
}

/** A reply that a view writes itself, because none will come. */
function failure(id: string, coordinator: string, error: string): CommandReply {
  return { type: 'reply', version: VERSION, id, coordinator, error, result: '' };
}

/** What is under way: each ends with its reply, or with a reason after a while. */
class Pending {
  constructor(private readonly time: Clock) {}

  /** Wait for the reply to `id`; the promise never fails, what went wrong is in the reply. */
  add(id: string, coordinator: string, late: string): Promise<CommandReply> {
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

  settle(reply: CommandReply): void {
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
