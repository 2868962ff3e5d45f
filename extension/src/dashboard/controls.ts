// The buttons, what came of them, and the newest checkpoint.

import type { Checkpoint, CommandName } from '../protocol';
import { ActionButton } from './button';
import { make, setData, setHidden, setText } from './dom';
import { formatRate, formatShare, plural } from './format';
import type { Context, Part } from './part';
import type { State } from './store';

export class Controls implements Part {
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

  private showCheckpoint({ state, path, share, error, held }: Checkpoint): void {
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
