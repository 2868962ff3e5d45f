// The learning rate of each parameter, and a field to set it.

import type { OptimizerRow } from '../protocol';
import { ActionButton } from './button';
import { Keyed, make, Section, setAttribute, setHidden, setText, type Item } from './dom';
import { formatNumber, plural } from './format';
import type { Context, Part } from './part';
import { toNumber, type State } from './store';

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

function makeRow(first: OptimizerRow, part: Optimizers, context: Context): Item<OptimizerRow> {
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
    if (part.reason || commands.underWay('set_learning_rate', parameter)) return;
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
      setAttribute(field, 'title', part.reason);
      if (field.readOnly !== !!part.reason) field.readOnly = !!part.reason;
      const busy = commands.underWay('set_learning_rate', parameter);
      set.update({ label: 'Set', reason: part.reason, busy });
    },
  };
}

export class Optimizers implements Part {
  readonly needs = ['optimizers', 'controls', 'commands'] as const;
  /** Why no learning rate can be set; empty if they can. */
  reason = '';

  private readonly section: Section;
  private readonly rows: Keyed<string, OptimizerRow>;

  constructor(root: HTMLElement, context: Context) {
    this.section = new Section(root, 'Learning rates', false, () => {
      context.redraw(this);
    });
    const list = make('ul', 'psnb-scroller psnb-optimizers', this.section.body);
    list.setAttribute('aria-label', 'Learning rates');
    this.rows = new Keyed(list, (row) => makeRow(row, this, context));
  }

  update({ optimizers, controls }: State): void {
    this.reason = controls.set_learning_rate ?? '';
    setHidden(this.section.root, !optimizers.length);
    this.section.describe(plural(optimizers.length, 'parameter'));
    if (this.section.open) this.rows.update(optimizers.map((row) => [row.parameter, row]));
  }
}
