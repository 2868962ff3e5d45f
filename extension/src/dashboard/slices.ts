// The values of metrics by slice, the worst first: a table for each metric that was called with `by`.

import type { SliceRow, Slices } from '../protocol';
import { formatCount, formatNumber, plural } from './format';
import {
  Fold,
  Keyed,
  make,
  makeWord,
  setAttribute,
  setHidden,
  setText,
  type Context,
  type Item,
  type Section,
} from './section';
import { toNumber, type State } from './store';
import { makeCell, makeRow, makeTable } from './tables';

const COLUMNS = [
  ['slice', 'The key of the slice in the column by which the metric was taken'],
  ['value', 'The metric of the examples of this slice alone; a dash if they have none'],
  ['examples', 'How many examples the slice has'],
] as const;

export class SliceTables implements Section {
  readonly needs = ['slices'] as const;
  private readonly fold: Fold;
  private readonly tables: Keyed<string, Slices>;

  constructor(root: HTMLElement, context: Context) {
    this.fold = new Fold(root, 'Slices', true, context, this);
    this.tables = new Keyed(make('div', '', this.fold.body), makeSlices);
  }

  update({ slices }: State): void {
    setHidden(this.fold.root, !slices.length);
    this.fold.describe(`${plural(slices.length, 'metric')}, the worst slices first`);
    if (this.fold.open) this.tables.update(slices.map((each) => [each.metric, each]));
  }
}

function makeSlices(): Item<Slices> {
  const root = make('div', 'psnb-slices-of', null);
  const title = make('div', 'psnb-slices-title', root);
  const name = make('span', 'psnb-row-name', title);
  const note = makeWord('psnb-heading-note', title);
  const body = makeTable(root, 'psnb-slices', '', COLUMNS);
  const table = body.parentElement;
  const scroller = table?.parentElement;
  if (scroller) {
    scroller.tabIndex = 0; // Long ones scroll, by keyboard too.
    scroller.setAttribute('role', 'group');
  }
  const rows = new Keyed<number, SliceRow>(body, makeSlice);
  return {
    root,
    update(slices): void {
      setText(name, slices.metric);
      setText(note, slicesNote(slices));
      if (table) setAttribute(table, 'aria-label', `Slices of ${slices.metric}, the worst first`);
      if (scroller) setAttribute(scroller, 'aria-label', `Slices of ${slices.metric}`);
      const shown = slices.others ? [...slices.rows, slices.others] : slices.rows;
      rows.update(shown.map((row, i) => [i, row])); // By place: two names may be cut to one.
    },
  };
}

/** How many slices there are, and of how many the rows are. */
export function slicesNote({ count, rows }: Slices): string {
  const shown = rows.length < count ? `the worst ${rows.length} of ` : '';
  return shown + plural(count, 'slice');
}

function makeSlice(): Item<SliceRow> {
  const { root, head } = makeRow();
  const name = make('span', 'psnb-row-name', head);
  const value = makeCell(root);
  const examples = makeCell(root);
  return {
    root,
    update(row): void {
      setText(name, row.slice || 'others');
      setAttribute(root, 'title', row.slice || OTHERS);
      root.classList.toggle('psnb-slice-others', !row.slice);
      const number = toNumber(row.value);
      setText(value, Number.isNaN(number) ? '–' : formatNumber(number));
      setText(examples, formatCount(row.examples));
    },
  };
}

const OTHERS = 'All examples of the slices beyond the number that was asked for';
