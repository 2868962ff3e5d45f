// The commands that one view gives, until the coordinator answers; the buttons that give them, what
// came of these, and the newest checkpoint.

import {
  VERSION,
  type CheckpointRow,
  type Command,
  type CommandName,
  type CommandReply,
} from '../protocol';
import { formatRate, formatShare, plural } from './format';
import {
  make,
  setAttribute,
  setData,
  setHidden,
  setText,
  type Context,
  type Section,
} from './section';
import type { State, Store } from './store';

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
  rewind: 'Rewind',
  set_learning_rate: 'Learning rate',
  add_worker: 'Add worker',
  retire_worker: 'Retire worker',
  describe_table: 'Describe',
  look_up_row: 'Look up',
  worker_output: 'Output',
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
  done: ((ok: boolean, reply: CommandReply) => void) | undefined;
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
   * `done` is called with whether it was carried out, and what came back.
   */
  give(
    command: CommandName,
    args: Command['arguments'] = {},
    subject = '',
    done?: (ok: boolean, reply: CommandReply) => void,
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
    pending.done?.(!reply.error, reply);
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

export class Controls implements Section {
  readonly needs = ['summary', 'controls', 'checkpoint', 'commands'] as const;
  private readonly toggle: ActionButton;
  private readonly buttons: [CommandName, string, ActionButton][];
  private readonly outcome: HTMLElement;
  private readonly checkpoint: HTMLElement;
  private readonly progress: HTMLProgressElement;
  private readonly saved: HTMLElement;
  private paused = false;
  private queued = 0;

  constructor(
    root: HTMLElement,
    private readonly context: Context,
  ) {
    const bar = make('div', 'psnb-controls', root);
    bar.setAttribute('role', 'group');
    bar.setAttribute('aria-label', 'Controls');
    this.toggle = new ActionButton(
      bar,
      () => {
        context.commands.give(this.paused ? 'resume' : 'pause');
      },
      'Stop or go on handing out closures; those in flight end',
    );
    const button = (
      command: CommandName,
      label: string,
      title: string,
      question?: () => string,
    ): [CommandName, string, ActionButton] => [
      command,
      label,
      new ActionButton(bar, () => { context.commands.give(command); }, title, question),
    ];
    this.buttons = [
      button('checkpoint', 'Checkpoint now', 'Write all parameters to a checkpoint'),
      button(
        'rewind',
        'Rewind',
        'Go back to the newest mark or checkpoint, and on from there',
        () => 'Really take back what was trained since the newest mark or checkpoint?',
      ),
      button('drain', 'Drain', 'Pause, and wait until what runs has ended'),
      button(
        'cancel_queued',
        'Cancel queued',
        'Drop the closures that wait for a worker',
        () => `Really cancel ${plural(this.queued, 'queued closure')}?`,
      ),
      button('stop_training', 'Stop training', 'Let what runs end, and return the history'),
      button('add_worker', 'Add worker', 'Have the cluster start one more worker'),
    ];
    this.checkpoint = make('div', 'psnb-checkpoint', root);
    this.progress = make('progress', '', this.checkpoint);
    this.progress.max = 1;
    this.progress.setAttribute('aria-label', 'Checkpoint');
    this.saved = make('span', '', this.checkpoint);
    this.saved.setAttribute('role', 'status');
    this.outcome = make('div', 'psnb-outcome', root);
    this.outcome.setAttribute('role', 'status');
  }

  update({ summary, controls, checkpoint }: State): void {
    const { commands } = this.context;
    this.paused = controls.resume === '';
    this.queued = summary.queued;
    const toggle = this.paused ? 'resume' : 'pause';
    this.toggle.update({
      label: this.paused ? 'Resume' : 'Pause',
      reason: controls[toggle] ?? '',
      busy: commands.underWay('pause') || commands.underWay('resume'),
    });
    for (const [command, label, button] of this.buttons) {
      const saving = command === 'checkpoint' && checkpoint.state === 'saving';
      // Most notebooks have no trainer, and nothing to learn from a button that is never of use.
      setHidden(button.root, command === 'stop_training' && controls[command] !== '');
      button.update({
        label,
        reason: controls[command] ?? '',
        busy: saving || commands.underWay(command),
      });
    }
    this.showCheckpoint(checkpoint);
    setText(this.outcome, commands.outcome.text);
    setData(this.outcome, 'bad', String(commands.outcome.bad));
  }

  private showCheckpoint({ state, path, share, error, held }: CheckpointRow): void {
    setHidden(this.checkpoint, state === 'none');
    setHidden(this.progress, state !== 'saving');
    if (state === 'saving') this.progress.value = share;
    setData(this.saved, 'bad', String(state === 'failed'));
    const texts = {
      none: '',
      // The bar has the share: a status that changes all the time would be read out all the time.
      saving: 'Writing a checkpoint',
      saved: `Checkpoint saved: ${path}${held ? ` (closures held for ${formatRate(held)} s)` : ''}`,
      failed: `Checkpoint failed: ${error}`,
    };
    setText(this.saved, texts[state]);
    this.progress.title = formatShare(share);
  }
}

/** What a button shows. */
interface ButtonState {
  label: string;
  /** Why it cannot be pressed; empty if it can. */
  reason: string;
  /** Its command was sent and is not answered yet. */
  busy: boolean;
}

/** A button; one with a question asks it in the page before it acts. */
export class ActionButton {
  readonly root: HTMLElement;
  private readonly button: HTMLButtonElement;
  private answers: HTMLElement | null = null;
  private available = true;

  /** `question` gives what is to be confirmed, empty for nothing. */
  constructor(
    parent: Element,
    private readonly act: () => void,
    private readonly title: string,
    private readonly question: () => string = () => '',
  ) {
    this.root = make('span', 'psnb-action', parent);
    this.button = make('button', 'psnb-button', this.root);
    this.button.type = 'button';
    this.button.addEventListener('click', () => {
      if (this.available) this.press();
    });
  }

  update({ label, reason, busy }: ButtonState): void {
    setText(this.button, label); // Also while it is busy: a wider one would move those next to it.
    // A button that is disabled altogether could not be reached by keyboard to hear why, and would
    // lose its focus when pressed.
    this.available = !reason && !busy;
    setAttribute(this.button, 'aria-disabled', String(!this.available));
    setAttribute(this.button, 'aria-busy', String(busy));
    setAttribute(this.button, 'title', reason || this.title);
    setAttribute(this.button, 'aria-description', reason || this.title);
    if (reason) this.close(false);
  }

  private press(): void {
    const question = this.question();
    if (!question) {
      this.act();
      return;
    }
    const answers = make('span', 'psnb-confirm', this.root);
    this.answers = answers;
    answers.setAttribute('role', 'group');
    answers.setAttribute('aria-label', question);
    make('span', '', answers, question);
    const answer = (label: string, pressed: () => void): HTMLButtonElement => {
      const button = make('button', 'psnb-button', answers, label);
      button.type = 'button';
      button.setAttribute('aria-description', question);
      button.addEventListener('click', pressed);
      return button;
    };
    const yes = answer('Yes', () => {
      this.close(true);
      if (this.available) this.act();
    });
    yes.classList.add('psnb-danger');
    const no = answer('No', () => {
      this.close(true);
    });
    answers.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.stopPropagation(); // JupyterLab would leave the cell.
      this.close(true);
    });
    setHidden(this.button, true);
    no.focus();
  }

  private close(focus: boolean): void {
    if (!this.answers) return;
    const focused = this.answers.contains(document.activeElement);
    setHidden(this.button, false);
    if (focus || focused) this.button.focus();
    this.answers.remove();
    this.answers = null;
  }
}
