// The closures that raised, newest first; their tracebacks fold out.

import type { FailureRow } from '../protocol';
import { Hover, Keyed, make, Section, setHidden, type Item } from './dom';
import { formatClock, formatCount } from './format';
import type { Context, Part } from './part';
import { MAX_ROWS, type State } from './store';

function makeFailure(failure: FailureRow): Item<FailureRow> {
  const root = make('details', 'psnb-failure', null);
  const summary = make('summary', '', root);
  make('span', 'psnb-clock', summary, formatClock(failure.time));
  make('span', 'psnb-failure-error', summary, failure.error);
  make('span', 'psnb-failure-where', summary, `${failure.closure} on ${failure.worker}`);
  const text = make('pre', 'psnb-traceback', root);
  text.tabIndex = 0; // Long ones scroll, by keyboard too.
  text.setAttribute('aria-label', `Traceback of ${failure.closure}`);
  // Two hundred tracebacks are long; most are never read.
  root.addEventListener('toggle', () => {
    if (root.open && !text.textContent) text.textContent = failure.traceback;
  });
  return { root, update: () => undefined };
}

export class Failures implements Part {
  readonly needs = ['failures'] as const;
  private readonly section: Section;
  private readonly rows: Keyed<number, FailureRow>;
  private readonly hover: Hover;

  constructor(root: HTMLElement, context: Context) {
    const redraw = (): void => {
      context.redraw(this);
    };
    this.section = new Section(root, 'Failures', true, redraw);
    const list = make('div', 'psnb-scroller psnb-failures', this.section.body);
    this.rows = new Keyed(list, makeFailure);
    this.hover = new Hover(list, redraw);
  }

  update({ failures, summary }: State): void {
    setHidden(this.section.root, !failures.length);
    const shown = failures.length >= MAX_ROWS ? `the newest ${MAX_ROWS} of ` : '';
    this.section.describe(shown + formatCount(Math.max(summary.failed, failures.length)));
    if (!this.section.open || this.hover.over) return;
    this.rows.update([...failures].reverse().map((failure) => [failure.number, failure]));
  }
}
