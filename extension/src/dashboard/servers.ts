// The parameter servers, one row each.

import type { ServerRow } from '../protocol';
import { Keyed, make, Section, setData, setHidden, setText, type Item } from './dom';
import { formatBytes, formatCount, formatNumber, formatRate, plural } from './format';
import type { Context, Part } from './part';
import { toNumber, type State } from './store';
import { makeCell, makeRow, makeTable, type ColumnTitle } from './table';

const COLUMNS: readonly ColumnTitle[] = [
  ['server', 'Name in the cluster and address'],
  ['state', 'serving, unreachable, lost, or released as the coordinator is closed; unknown if it was not asked yet'],
  ['shards', 'Shards of parameters that it holds'],
  ['bytes', 'Memory of its parameters, with what optimizers keep'],
  ['pulls/s', 'Reads of variables and of rows of embeddings, per second'],
  ['pushes/s', 'Gradients that it takes, per second'],
  ['staleness', 'Mean of the updates lately'],
];

function makeServer(): Item<ServerRow> {
  const { root, head } = makeRow();
  const name = make('span', 'psnb-row-name', head);
  const address = make('span', 'psnb-address', head);
  const state = make('span', 'psnb-state', makeCell(root));
  const cells = COLUMNS.slice(2).map(() => makeCell(root));
  return {
    root,
    update(server): void {
      setText(name, server.name);
      setText(address, server.address);
      root.title = `${server.name}  ${server.address}`;
      setText(state, server.state);
      setData(state, 'tone', server.tone);
      const staleness = toNumber(server.staleness);
      const texts = [
        formatCount(server.shards),
        formatBytes(server.bytes),
        formatRate(toNumber(server.pulls_per_second)),
        formatRate(toNumber(server.pushes_per_second)),
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
    const label = 'Parameter servers';
    const body = makeTable(this.section.body, 'psnb-servers', label, COLUMNS);
    this.rows = new Keyed(body, makeServer);
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
