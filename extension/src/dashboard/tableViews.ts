// What is in the embeddings: a histogram of norms, ages and the most used ids of a table; and a box
// for an id, which shows its row and those near to it. Both are asked for by a button.

import type { CommandReply, Num, RowFound, RowNear, TableDescribed } from '../protocol';
import { ActionButton } from './commands';
import { formatBytes, formatCount, formatNumber, plural } from './format';
import {
  Keyed,
  make,
  makeSvg,
  setAttribute,
  setHidden,
  setText,
  type Context,
  type Item,
  type Section,
} from './section';
import { toNumber, type State } from './store';
import { makeCell, makeRow, makeTable, type ColumnTitle } from './tables';

const NEAR_COLUMNS: readonly ColumnTitle[] = [
  ['nearest rows', 'Their ids, the nearest first; a click shows the row'],
  ['cosine', 'Of the angle between the rows'],
  ['norm', 'Euclidean length of the row'],
  ['days unseen', 'Days that have ended since it was last pushed, where that is recorded'],
];

const HEIGHT = 40; // The histogram is drawn in a box of these units and stretched to fit.
const BAR = 10;

/** An id that someone typed, or null if it is none: digits, as numbers do not hold 64 bits. */
export function parseId(text: string): string | null {
  const id = text.trim();
  return /^-?\d{1,20}$/.test(id) ? id : null;
}

/** What the rows of a table are like, in a sentence. */
export function describeRows(of: TableDescribed): string {
  const parts = [plural(of.rows, 'row'), formatBytes(of.bytes)];
  if (of.waiting) parts.push(`${plural(of.waiting, 'id')} waiting for one`);
  if (of.counts.length) parts.push(`mean norm ${formatNumber(toNumber(of.mean))}`);
  if (of.zeros) parts.push(`${formatCount(of.zeros)} of zeros`);
  if (of.not_finite) parts.push(`${formatCount(of.not_finite)} with NaN or infinities`);
  return `${of.table}: ${parts.join(', ')}`;
}

/** A histogram of norms, in a sentence for those who do not see it. */
export function describeNorms({ edges, counts }: TableDescribed): string {
  const most = counts.indexOf(Math.max(...counts));
  const edge = (n: number): string => formatNumber(toNumber(edges[n] ?? NaN));
  return (
    `Norms of rows from ${edge(0)} to ${edge(counts.length)}; most, ` +
    `${formatCount(counts[most] ?? 0)}, from ${edge(most)} to ${edge(most + 1)}`
  );
}

/** How many rows were not seen for how long; the last entry may be of longer times, too. */
export function describeAges({ ages }: TableDescribed): string {
  return ages.map(([day, rows]) => `${formatCount(day)}: ${formatCount(rows)}`).join(', ');
}

/** A row, in a sentence. */
export function describeRow(of: RowFound): string {
  const parts = [`norm ${formatNumber(toNumber(of.norm))}`];
  if (of.unseen_days !== null) parts.push(`unseen for ${days(of.unseen_days)}`);
  if (of.score !== null) parts.push(`score ${formatNumber(toNumber(of.score))}`);
  return `${of.table}, id ${of.id}: ${parts.join(', ')}`;
}

function days(value: Num): string {
  return plural(Math.round(toNumber(value)), 'day');
}

export class TableViews implements Section {
  readonly needs = ['tables', 'controls', 'commands'] as const;
  private readonly root: HTMLElement;
  private readonly select: HTMLSelectElement;
  private readonly field: HTMLInputElement;
  private readonly describe: ActionButton;
  private readonly lookUp: ActionButton;
  private readonly sentence: HTMLElement;
  private readonly described: DescribedTable;
  private readonly found: FoundRow;
  private names: readonly string[] = [];
  private reason = '';

  constructor(
    parent: Element,
    private readonly context: Context,
  ) {
    this.root = make('div', 'psnb-tables', parent);
    this.root.setAttribute('role', 'group');
    this.root.setAttribute('aria-label', 'Look into a table');
    const form = make('form', 'psnb-table-form', this.root);
    this.select = make('select', 'psnb-field psnb-table-name', form);
    this.select.setAttribute('aria-label', 'Table');
    const title = 'Have the servers read all of its rows: norms, ages, the most used';
    this.describe = new ActionButton(form, () => { this.ask(); }, title);
    this.field = make('input', 'psnb-field psnb-table-id', form);
    this.field.type = 'text';
    this.field.inputMode = 'numeric';
    this.field.autocomplete = 'off';
    this.field.spellcheck = false;
    this.field.placeholder = 'id';
    this.field.setAttribute('aria-label', 'Id of a row');
    const submit = (): void => { this.look(this.field.value); };
    this.lookUp = new ActionButton(form, submit, 'Show its row and those near to it');
    form.addEventListener('submit', (event) => {
      event.preventDefault(); // The page stays.
      submit();
    });
    this.field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter') return;
      event.preventDefault();
      submit();
    });
    this.field.addEventListener('input', () => {
      this.field.removeAttribute('aria-invalid');
    });
    this.sentence = make('div', 'psnb-table-sentence', this.root);
    this.sentence.setAttribute('role', 'status');
    this.described = new DescribedTable(this.root);
    this.found = new FoundRow(this.root, (id) => { this.look(id); });
  }

  update({ tables, controls }: State): void {
    const { commands } = this.context;
    setHidden(this.root, !tables.length);
    if (tables !== this.names) {
      this.names = tables;
      const chosen = this.select.value;
      this.select.replaceChildren(...tables.map((name) => new Option(name, name)));
      if (tables.includes(chosen)) this.select.value = chosen;
    }
    const table = this.select.value;
    this.reason = controls.describe_table ?? '';
    this.describe.update({
      label: 'Describe',
      reason: this.reason,
      busy: commands.underWay('describe_table', table),
    });
    this.lookUp.update({
      label: 'Look up',
      reason: controls.look_up_row ?? '',
      busy: commands.underWay('look_up_row', table),
    });
  }

  private ask(): void {
    const table = this.select.value;
    this.context.commands.give('describe_table', { table }, table, (_, { described }) => {
      if (described) this.show(describeRows(described), described, undefined);
    });
  }

  private look(typed: string): void {
    const { commands } = this.context;
    const table = this.select.value;
    if (this.reason || commands.underWay('look_up_row', table)) return;
    const row_id = parseId(typed);
    setAttribute(this.field, 'aria-invalid', String(row_id === null));
    if (row_id === null) {
      commands.refuse('look_up_row', table, `"${typed}" is not an id, which is an integer`);
      this.field.focus();
      return;
    }
    this.field.value = row_id;
    commands.give('look_up_row', { table, row_id }, table, (_, { found }) => {
      if (found) this.show(describeRow(found), undefined, found);
    });
  }

  private show(sentence: string, described: CommandReply['described'], found?: RowFound): void {
    setText(this.sentence, sentence);
    this.described.update(described);
    this.found.update(found);
  }
}

/** What came of a description. */
class DescribedTable {
  private readonly root: HTMLElement;
  private readonly norms: HTMLElement;
  private readonly chart: SVGSVGElement;
  private readonly least: HTMLElement;
  private readonly most: HTMLElement;
  private readonly ages: HTMLElement;
  private readonly used: HTMLElement;

  constructor(parent: Element) {
    this.root = make('div', 'psnb-described', parent);
    this.norms = make('div', 'psnb-norms', this.root);
    make('div', 'psnb-norms-label', this.norms, 'norms of rows');
    this.chart = makeSvg('svg', 'psnb-histogram', this.norms);
    this.chart.setAttribute('preserveAspectRatio', 'none');
    this.chart.setAttribute('role', 'img');
    const axis = make('div', 'psnb-norms-axis', this.norms);
    axis.setAttribute('aria-hidden', 'true'); // The sentence of the chart says it.
    this.least = make('span', '', axis);
    this.most = make('span', '', axis);
    this.ages = make('div', 'psnb-table-line', this.root);
    this.used = make('div', 'psnb-table-line', this.root);
    this.update(undefined);
  }

  update(of: TableDescribed | undefined): void {
    setHidden(this.root, !of);
    if (!of) return;
    const { counts, edges } = of;
    setHidden(this.norms, !counts.length);
    if (counts.length) {
      const edge = (n: number): string => formatNumber(toNumber(edges[n] ?? NaN));
      setAttribute(this.chart, 'viewBox', `0 0 ${BAR * counts.length} ${HEIGHT}`);
      setAttribute(this.chart, 'aria-label', describeNorms(of));
      this.chart.replaceChildren();
      const most = Math.max(...counts);
      counts.forEach((count, i) => {
        const bar = makeSvg('rect', 'psnb-histogram-bar', this.chart);
        // A single row is seen, too.
        const height = count ? Math.max(1, (HEIGHT * count) / most) : 0;
        setAttribute(bar, 'x', String(BAR * i + 0.5));
        setAttribute(bar, 'y', String(HEIGHT - height));
        setAttribute(bar, 'width', String(BAR - 1));
        setAttribute(bar, 'height', String(height));
        const title = makeSvg('title', '', bar);
        title.textContent = `${formatCount(count)} from ${edge(i)} to ${edge(i + 1)}`;
      });
      setText(this.least, edge(0));
      setText(this.most, edge(counts.length));
    }
    const ages = describeAges(of);
    setText(this.ages, ages && `rows by days unseen: ${ages}`);
    const used = of.most_used.map(([id, score]) => `${id} (${formatNumber(toNumber(score))})`);
    setText(this.used, used.length ? `most used, with their scores: ${used.join(', ')}` : '');
  }
}

/** What came of an id. */
class FoundRow {
  private readonly root: HTMLElement;
  private readonly values: HTMLElement;
  private readonly rows: Keyed<string, RowNear>;

  constructor(parent: Element, look: (id: string) => void) {
    this.root = make('div', 'psnb-found', parent);
    this.values = make('div', 'psnb-table-line', this.root);
    const body = makeTable(this.root, 'psnb-near', 'Nearest rows', NEAR_COLUMNS);
    this.rows = new Keyed(body, (near) => makeNear(near, look));
    this.update(undefined);
  }

  update(of: RowFound | undefined): void {
    setHidden(this.root, !of);
    if (!of) return;
    const values = of.values.map((value) => formatNumber(toNumber(value))).join(', ');
    setText(this.values, `first numbers: ${values}`);
    this.rows.update(of.nearest.map((near) => [near.id, near]));
  }
}

function makeNear({ id }: RowNear, look: (id: string) => void): Item<RowNear> {
  const { root, head } = makeRow();
  const button = make('button', 'psnb-row-link', head, id);
  button.type = 'button';
  button.setAttribute('aria-label', `Look up id ${id}`);
  button.addEventListener('click', () => { look(id); });
  const cells = NEAR_COLUMNS.slice(1).map(() => makeCell(root));
  return {
    root,
    update(near): void {
      const texts = [
        formatNumber(toNumber(near.score)),
        formatNumber(toNumber(near.norm)),
        near.unseen_days === null ? '–' : formatCount(Math.round(toNumber(near.unseen_days))),
      ];
      cells.forEach((cell, i) => {
        setText(cell, texts[i] ?? '');
      });
    },
  };
}
