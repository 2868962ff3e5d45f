// The model behind the panel: what the hub on the Jupyter server knows of all coordinators, and the
// way of commands to them. Views listen to its signals and draw.

import { UUID } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

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

interface Waiting {
  coordinator: string;
  cancel: () => void;
  finish: (reply: CommandReply) => void;
}

export class Hub implements IDisposable {
  /** All coordinators that the hub knows; as they were when it was reached last. */
  sources: readonly Source[] = [];
  /** All schedulers that were attached. */
  schedulers: readonly Scheduler[] = [];
  isDisposed = false;
  /** Emitted when reach, sources or schedulers have changed. */
  readonly changed = new Signal<this, void>(this);
  /** Emitted with the name of a coordinator that has news. */
  readonly updated = new Signal<this, string>(this);

  /** What is under way, by its id: each ends with its reply, or with a reason after a while. */
  private readonly waiting = new Map<string, Waiting>();
  private readonly stores = new Map<string, Store>();
  private mismatch: Reach | null = null; // the Jupyter server has another version of psnb

  constructor(
    private readonly connection: Connection,
    private readonly time: Clock = clock,
  ) {
    connection.changed.connect((_, reach) => this.moved(reach));
    connection.received.connect((_, text) => this.heard(text));
  }

  /** Whether the hub can be reached, and if not, why. */
  get reach(): Reach {
    return this.mismatch ?? this.connection.reach;
  }

  /** The state of a coordinator; nothing if it is not known or has sent nothing yet. */
  store(coordinator: string): Store | undefined {
    return this.stores.get(coordinator);
  }

  source(coordinator: string): Source | undefined {
    return this.sources.find((source) => source.coordinator === coordinator);
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
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    this.abandon('This page was closed.');
    this.connection.dispose();
    Signal.clearData(this);
  }

  /** The promise never fails: what went wrong is in the reply. */
  private async ask(message: Command | Attach): Promise<CommandReply> {
    const { id } = message;
    const coordinator = message.type === 'command' ? message.coordinator : '';
    let reply = failure(id, coordinator, UNSENT);
    if (this.connection.send(JSON.stringify(message))) {
      reply = await new Promise<CommandReply>((finish) => {
        const late = failure(id, coordinator, LATE);
        const cancel = this.time.after(LIMIT, () => this.settle(late));
        this.waiting.set(id, { coordinator, cancel, finish });
      });
    }
    this.stores.get(coordinator)?.accept(reply);
    return reply;
  }

  private settle(reply: CommandReply): void {
    const waiting = this.waiting.get(reply.id);
    this.waiting.delete(reply.id);
    waiting?.cancel();
    waiting?.finish(reply);
  }

  /** Nothing that is under way will be answered any more. */
  private abandon(reason: string): void {
    for (const [id, { coordinator }] of [...this.waiting]) {
      this.settle(failure(id, coordinator, reason));
    }
  }

  private moved(reach: Reach): void {
    if (reach.state === 'connected') {
      this.mismatch = null;
    } else {
      this.abandon(CUT);
    }
    this.changed.emit();
  }

  private heard(text: string): void {
    const message = decode(text);
    switch (message.type) {
      case 'refused':
        this.mismatch = mismatch(message.reason);
        this.changed.emit();
        break;
      case 'sources':
        this.know(message.sources, message.schedulers);
        break;
      case 'update':
        this.open(message.coordinator).accept(message);
        this.updated.emit(message.coordinator);
        break;
      case 'reply':
        this.settle(message);
        break;
    }
  }

  private know(sources: readonly Source[], schedulers: readonly Scheduler[]): void {
    this.sources = sources;
    this.schedulers = schedulers;
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
    this.changed.emit();
  }

  private open(coordinator: string): Store {
    let store = this.stores.get(coordinator);
    if (!store) {
      store = new Store(() => this.forward({ type: 'hello', version: VERSION }));
      this.stores.set(coordinator, store);
    }
    return store;
  }
}

function mismatch(reason: string): Reach {
  const text =
    `This page and the Jupyter server run different versions of psnb (${reason}). ` +
    'Restart the server and reload the page.';
  return { state: 'unreachable', reason: text, remedy: '' };
}

const LATE = 'No answer within 10 seconds. Its process may be busy or gone; look at its state.';
const UNSENT = 'Not sent: the hub on the Jupyter server cannot be reached.';
const CUT = 'The connection to the Jupyter server broke before an answer came; look at its state.';

/** Milliseconds after which a command is taken for lost. */
export const LIMIT = 10_000;

/** A reply that a view writes itself, because none will come. */
function failure(id: string, coordinator: string, error: string): CommandReply {
  return { type: 'reply', version: VERSION, id, coordinator, error, result: '' };
}
