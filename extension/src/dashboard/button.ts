// Buttons that give commands.

import { make, setAttribute, setHidden, setText } from './dom';

/** What a button shows. */
export interface ButtonState {
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
    setText(this.button, label); // Also while it is busy: a wider one would move those beside it.
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
