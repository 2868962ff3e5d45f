// What closures have printed, warned of and logged on a worker, below the table of workers: asked for
// by a click on a worker's name.

import type { OutputFound } from '../protocol';
import { ActionButton } from './commands';
import { formatClock, formatCount, plural } from './format';
import { make, setHidden, setText, type Context } from './section';

/** What is shown, in a sentence. */
export function describeOutput({ worker, left_out, lines }: OutputFound): string {
  if (!lines.length && !left_out) return `${worker}: nothing was printed`;
  const before = left_out ? `, after ${formatCount(left_out)} that are not shown` : '';
  return `${worker}: ${plural(lines.length, 'line')}${before}`;
}

/** The lines as they are shown. */
export function outputText({ lines }: OutputFound): string {
  return lines.map((line) => `${formatClock(line.time)}  ${line.closure}: ${line.text}`).join('\n');
}

export class WorkerOutput {
  private readonly root: HTMLElement;
  private readonly sentence: HTMLElement;
  private readonly again: ActionButton;
  private readonly text: HTMLElement;
  private worker = '';

  constructor(
    parent: Element,
    private readonly context: Context,
  ) {
    this.root = make('div', 'psnb-output', parent);
    const head = make('div', 'psnb-output-head', this.root);
    this.sentence = make('div', '', head);
    this.sentence.setAttribute('role', 'status');
    const again = (): void => { this.ask(this.worker); };
    this.again = new ActionButton(head, again, 'Show what closures have printed since');
    const close = new ActionButton(head, () => { setHidden(this.root, true); }, 'Hide the output');
    close.update({ label: 'Close', reason: '', busy: false });
    this.text = make('pre', 'psnb-output-text', this.root);
    this.text.tabIndex = 0; // It scrolls, also by keyboard.
    setHidden(this.root, true);
  }

  /** `reason` says why nothing can be asked for; empty if it can. */
  update(reason: string): void {
    const busy = this.context.commands.underWay('worker_output', this.worker);
    this.again.update({ label: 'Refresh', reason, busy });
  }

  /** Asks for the lines of a worker, and shows them when they come. */
  ask(worker: string): void {
    this.context.commands.give('worker_output', { worker }, worker, (_, { output }) => {
      if (!output) return;
      this.worker = worker;
      setHidden(this.root, false);
      setText(this.sentence, describeOutput(output));
      setText(this.text, outputText(output));
      setHidden(this.text, !output.lines.length);
      this.text.setAttribute('aria-label', `Output of ${worker}`);
      this.text.scrollTop = this.text.scrollHeight;
    });
  }
}
