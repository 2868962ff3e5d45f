// The parameter servers, one row each.

import type { ServerRow } from '../protocol';
import { Keyed, make, Section, setData, setHidden, setText, type Item } from './dom';
import { formatBytes, formatCount, formatNumber, formatRate, plural } from './format';
import type { Context, Part } from './part';
import { toNumber, type State } from './store';

const COLUMNS: readonly [string, string, string][] = [
  ['name', 'server', 'Name in the cluster and address'],
  ['state', 'state', 'serving, or unreachable'],
  ['number', 'shards', 'Shards of parameters that it holds'],
  ['number', 'bytes', 'Memory of its parameters, with what optimizers keep'],
  ['number', 'pulls/s', 'Reads of variables and of rows of embeddings, per second'],
  ['number', 'pushes/s', 'Gradients that it takes, per second'],
  ['number', 'staleness', 'Mean of the updates lately'],
];

function makeRow(): Item<ServerRow> {
  const root = make('tr', '', null);
  const head = make('th', 'psnb-worker', root);
  head.scope = 'row';
  const name = make('span', 'psnb-worker-name', head);
  const address = make('span', 'psnb-address', head);
  const state = make('span', 'psnb-state', make('td', '', root));
  const cells = COLUMNS.slice(2).map(() => make('td', '', root));
  return {
    root,
    update(server): void {
      setText(name, server.name);
      setText(address, server.address);
      root.title = `${server.name}  ${server.address}`;
      setText(state, server.state);
      setData(state, 'state', server.state);
      const staleness = toNumber(server.staleness);
      const texts = [
        formatCount(server.shards),
        formatBytes(server.bytes),
        formatRate(server.pulls_per_second),
        formatRate(server.pushes_per_second),
        Number.isNaN(staleness) ? '–' : formatNumber(staleness),
      ];
      cells.forEach((cell, i) => {
        setText(cell, texts[i] ?? '');
      });
    },
  };
}

export class Servers implements Part {
  readonly needs = ['servers'] as const;
  private readonly section: Section;
  private readonly rows: Keyed<string, ServerRow>;

  constructor(root: HTMLElement, context: Context) {
    this.section = new Section(root, 'Servers', true, () => {
      context.redraw(this);
    });
    const table = make('table', '', make('div', 'psnb-scroller psnb-servers', this.section.body));
    table.setAttribute('aria-label', 'Parameter servers');
    const titles = make('tr', '', make('thead', '', table));
    for (const [kind, label, title] of COLUMNS) {
      const cell = make('th', `psnb-col-${kind}`, titles, label);
      cell.scope = 'col';
      cell.title = title;
    }
    this.rows = new Keyed(make('tbody', '', table), makeRow);
  }

  update({ servers }: State): void {
    setHidden(this.section.root, !servers.length);
    const bytes = servers.reduce((sum, server) => sum + server.bytes, 0);
    this.section.describe(`${plural(servers.length, 'server')}, ${formatBytes(bytes)}`);
    if (this.section.open) {
      this.rows.update(servers.map((server) => [`${server.name} ${server.address}`, server]));
    }
  }
}
