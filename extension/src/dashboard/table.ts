// Tables whose rows are laid out one by one: text that changes in one of a hundred rows must not
// lay out the others, as it would in a table of the browser's. The roles say that it is one.

import { make } from './dom';

/** Label of a column, and what it means. */
export type ColumnTitle = readonly [label: string, title: string];

/** Makes a table with its heading; returns its body. */
export function makeTable(
  parent: Element,
  className: string,
  label: string,
  columns: readonly ColumnTitle[],
): HTMLElement {
  const table = make('table', '', make('div', `psnb-scroller ${className}`, parent));
  table.setAttribute('role', 'table');
  table.setAttribute('aria-label', label);
  const head = make('thead', '', table);
  head.setAttribute('role', 'rowgroup');
  const titles = make('tr', '', head);
  titles.setAttribute('role', 'row');
  for (const [text, title] of columns) {
    const cell = make('th', '', titles, text);
    cell.setAttribute('role', 'columnheader');
    cell.title = title;
    if (!text) cell.setAttribute('aria-label', title);
  }
  const body = make('tbody', '', table);
  body.setAttribute('role', 'rowgroup');
  return body;
}

/** Makes a row, with the cell that names it. */
export function makeRow(): { root: HTMLTableRowElement; head: HTMLElement } {
  const root = make('tr', '', null);
  root.setAttribute('role', 'row');
  const head = make('th', 'psnb-rowhead', root);
  head.setAttribute('role', 'rowheader');
  return { root, head };
}

/** Makes a cell of a row. */
export function makeCell(row: Element, className = ''): HTMLElement {
  const cell = make('td', className, row);
  cell.setAttribute('role', 'cell');
  return cell;
}
