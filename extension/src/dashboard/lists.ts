// The lists of the dashboard: learning rates with a field to set them, failures and events.

import type { EventRow, FailureRow, OptimizerRow } from '../protocol';
import { ActionButton } from './controls';
import { Fold, Keyed, make, setAttribute, setHidden, setText, type Item } from './dom';
import { formatClock, formatCount, formatNumber, plural } from './format';
import type { Context, Section } from './section';
import { MAX_ROWS, toNumber, type State } from './store';

/** A learning rate as text, with all the digits that somebody set and no more of a schedule's. */
export function formatLearningRate({ learning_rate, schedule }: OptimizerRow): string {
  const rate = toNumber(learning_rate);
  if (!Number.isFinite(rate)) return formatNumber(rate);
  return String(schedule ? Number(rate.toPrecision(4)) : rate);
}

/** The learning rate that someone typed, or null if it is none. */
export function parseLearningRate(text: string): number | null {
  const value = Number(text.trim());
  return text.trim() && Number.isFinite(value) && value >= 0 ? value : null;
}

function makeRate(first: OptimizerRow, list: Optimizers, context: Context): Item<OptimizerRow> {
  const { parameter } = first; // The key: it stays.
  const root = make('li', 'psnb-optimizer', null);
  make('span', 'psnb-parameter', root, parameter).title = parameter;
  const optimizer = make('span', 'psnb-optimizer-class', root);
  const schedule = make('span', 'psnb-schedule', root);
  const form = make('form', 'psnb-rate', root);
  const rate = make('span', 'psnb-rate-now', form);
  rate.title = 'Of the next update';
  const field = make('input', 'psnb-field', form);
  field.type = 'text';
  field.inputMode = 'decimal';
  field.autocomplete = 'off';
  field.spellcheck = false;
  field.placeholder = 'new rate';
  field.setAttribute('aria-label', `New learning rate of ${parameter}`);
  const { commands } = context;
  const submit = (): void => {
    if (list.reason || commands.underWay('set_learning_rate', parameter)) return;
    const typed = field.value;
    const value = parseLearningRate(typed);
    setAttribute(field, 'aria-invalid', String(value === null));
    if (value === null) {
      commands.refuse('set_learning_rate', parameter, `"${typed}" is not a number of at least 0`);
      field.focus();
      return;
    }
    commands.give('set_learning_rate', { parameter, value }, parameter, (ok) => {
      if (ok && field.value === typed) field.value = '';
    });
  };
  const set = new ActionButton(form, submit, 'Takes effect on the next update');
  form.addEventListener('submit', (event) => {
    event.preventDefault(); // The page stays.
    submit();
  });
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter') return;
    event.preventDefault();
    submit();
  });
  field.addEventListener('input', () => {
    field.removeAttribute('aria-invalid');
  });
  return {
    root,
    update(row): void {
      setText(optimizer, row.optimizer);
      setText(schedule, row.schedule);
      setAttribute(schedule, 'title', row.schedule);
      setText(rate, formatLearningRate(row));
      setAttribute(field, 'title', list.reason);
      if (field.readOnly !== !!list.reason) field.readOnly = !!list.reason;
      const busy = commands.underWay('set_learning_rate', parameter);
      set.update({ label: 'Set', reason: list.reason, busy });
    },
  };
}

/** The learning rate of each parameter, and a field to set it. */
export class Optimizers implements Section {
  readonly needs = ['optimizers', 'controls', 'commands'] as const;
  /** Why no learning rate can be set; empty if they can. */
  reason = '';

  private readonly fold: Fold;
  private readonly rows: Keyed<string, OptimizerRow>;

  constructor(root: HTMLElement, context: Context) {
    this.fold = new Fold(root, 'Learning rates', false, () => {
      context.redraw(this);
    });
    const list = make('ul', 'psnb-scroller psnb-optimizers', this.fold.body);
    list.setAttribute('aria-label', 'Learning rates');
    this.rows = new Keyed(list, (row) => makeRate(row, this, context));
  }

  update({ optimizers, controls }: State): void {
    this.reason = controls.set_learning_rate ?? '';
    setHidden(this.fold.root, !optimizers.length);
    this.fold.describe(plural(optimizers.length, 'parameter'));
    if (this.fold.open) this.rows.update(optimizers.map((row) => [row.parameter, row]));
  }
}

/** A list that grows, newest first. Under the pointer nothing moves. */
class Newest<K, T> {
  private readonly fold: Fold;
  private readonly rows: Keyed<K, T>;
  private hovered = false;

  constructor(
    parent: Element,
    title: string,
    open: boolean,
    list: HTMLElement,
    create: (row: T) => Item<T>,
    redraw: () => void,
  ) {
    this.fold = new Fold(parent, title, open, redraw);
    this.fold.body.append(list);
    this.rows = new Keyed(list, create);
    list.addEventListener('pointerenter', () => {
      this.hovered = true;
    });
    list.addEventListener('pointerleave', () => {
      this.hovered = false;
      redraw();
    });
  }

  /** `rows` are the oldest first. */
  update(rows: readonly T[], key: (row: T) => K, note: string): void {
    setHidden(this.fold.root, !rows.length);
    this.fold.describe(note);
    if (!this.fold.open || this.hovered) return;
    this.rows.update(rows.map((row) => [key(row), row] as const).reverse());
  }
}

/** The closures that raised; their tracebacks fold out. */
export class Failures implements Section {
  readonly needs = ['failures'] as const;
  private readonly list: Newest<number, FailureRow>;

  constructor(root: HTMLElement, context: Context) {
    const list = make('div', 'psnb-scroller psnb-failures', null);
    this.list = new Newest(root, 'Failures', true, list, makeFailure, () => {
      context.redraw(this);
    });
  }

  update({ failures, summary }: State): void {
    const shown = failures.length >= MAX_ROWS ? `the newest ${MAX_ROWS} of ` : '';
    const note = shown + formatCount(Math.max(summary.failed, failures.length));
    this.list.update(failures, (failure) => failure.number, note);
  }
}

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

/** What happened. */
export class Events implements Section {
  readonly needs = ['events'] as const;
  private readonly list: Newest<EventRow, EventRow>;

  constructor(root: HTMLElement, context: Context) {
    const list = make('ol', 'psnb-scroller psnb-events', null);
    list.setAttribute('aria-label', 'Events, newest first');
    this.list = new Newest(root, 'Events', false, list, makeEvent, () => {
      context.redraw(this);
    });
  }

  update({ events }: State): void {
    const newest = events.at(-1);
    const note = newest ? `${formatCount(events.length)}, last: ${newest.message}` : '';
    this.list.update(events, (event) => event, note);
  }
}

function makeEvent(event: EventRow): Item<EventRow> {
  const root = make('li', 'psnb-event', null);
  make('span', 'psnb-clock', root, formatClock(event.time));
  make('span', 'psnb-event-kind', root, event.kind);
  make('span', 'psnb-event-worker', root, event.worker);
  make('span', 'psnb-event-message', root, event.message);
  return { root, update: () => undefined };
}
