// The workers, one row each. Rows that are scrolled out of view are brought up to date when they
// come into it.

import type { WorkerRow } from '../protocol';
import { ActionButton } from './button';
import { Keyed, make, Section, setData, setHidden, setText, type Item } from './dom';
import { formatBytes, formatClock, formatCount, formatRate, formatShare, plural } from './format';
import type { Context, Part } from './part';
import { PhaseBar, PhaseSummary } from './phases';
import { toNumber, type State } from './store';
import { makeCell, makeRow, makeTable, type ColumnTitle } from './table';
import { Visibility } from './visible';

const COLUMNS: readonly ColumnTitle[] = [
  ['worker', 'Name in the cluster, host, what takes it long at the moment, and last error'],
  ['state', 'connecting, ready, draining (it leaves), retired (it has left) or lost'],
  ['in flight', 'Closures it holds'],
  ['completed', 'Closures that ended well there, and those that raised'],
  ['per s', 'Closures that ended there, per second'],
  ['busy', "Share of its threads' time spent inside closures lately, and what that went to"],
  ['memory', 'Memory of its process'],
  ['', 'Retire the worker'],
];

class Row implements Item<WorkerRow> {
  readonly root: HTMLTableRowElement;
  private readonly name: HTMLElement;
  private readonly host: HTMLElement;
  private readonly activity: HTMLElement;
  private readonly error: HTMLElement;
  private readonly state: HTMLElement;
  private readonly cells: HTMLElement[];
  private readonly failed: HTMLElement;
  private readonly share: HTMLElement;
  private readonly bar: PhaseBar;
  private readonly memory: HTMLElement;
  private readonly retire: ActionButton;
  private worker: WorkerRow;
  private drawn: WorkerRow | null = null;

  constructor(
    worker: WorkerRow,
    private readonly table: Workers,
    private readonly context: Context,
  ) {
    this.worker = worker;
    const { root, head } = makeRow();
    this.root = root;
    this.name = make('span', 'psnb-row-name', head);
    this.host = make('span', 'psnb-address', head);
    this.activity = make('span', 'psnb-row-activity', head);
    this.error = make('span', 'psnb-row-error', head);
    this.state = make('span', 'psnb-state', makeCell(root));
    const flying = makeCell(root);
    const ended = makeCell(root);
    const completed = make('span', '', ended);
    this.failed = make('span', 'psnb-row-failed', ended);
    this.failed.dataset['bad'] = 'true';
    this.cells = [flying, completed, makeCell(root)];
    const busy = makeCell(root);
    this.share = make('span', '', busy);
    this.bar = new PhaseBar(busy, 'psnb-bar');
    this.memory = makeCell(root);
    this.retire = new ActionButton(
      makeCell(root, 'psnb-retire'),
      () => {
        const { name } = this.worker;
        context.commands.give('retire_worker', { worker: name }, name);
      },
      'Let it end what it holds, then take it out of the cluster',
      () => `Really retire ${this.worker.name}?`,
    );
  }

  update(worker: WorkerRow): void {
    this.worker = worker;
    if (this.table.shows(this.root)) this.draw();
  }

  draw(): void {
    const { worker } = this;
    const { commands } = this.context;
    setHidden(this.retire.root, worker.state !== 'ready');
    this.retire.update({
      label: 'Retire',
      reason: this.table.reason,
      busy: commands.underWay('retire_worker', worker.name),
    });
    if (worker === this.drawn) return;
    this.drawn = worker;
    setText(this.name, worker.name);
    setText(this.host, worker.host);
    this.root.title = `${worker.name}  ${worker.address}  (worker_index ${worker.index})`;
    const since = worker.running_since;
    setText(this.activity, worker.activity);
    this.activity.title = since === null ? '' : `${worker.activity} since ${formatClock(since)}`;
    setText(this.error, worker.last_error);
    this.error.title = worker.last_error;
    setText(this.state, worker.state);
    setData(this.state, 'tone', worker.tone);
    const texts = [
      formatCount(worker.in_flight),
      formatCount(worker.completed),
      formatRate(toNumber(worker.closures_per_second)),
    ];
    this.cells.forEach((cell, i) => {
      setText(cell, texts[i] ?? '');
    });
    setText(this.failed, worker.failed ? ` ${formatCount(worker.failed)} failed` : '');
    const busy = toNumber(worker.busy);
    setText(this.share, formatShare(busy));
    this.bar.update(worker.phases, Math.min(1, busy));
    setText(this.memory, worker.memory === null ? '–' : formatBytes(worker.memory));
  }
}

export class Workers implements Part {
  readonly needs = ['workers', 'controls', 'commands', 'summary', 'starved'] as const;
  /** Why no worker can be retired; empty if they can. */
  reason = '';

  private readonly section: Section;
  private readonly phases: PhaseSummary;
  private readonly rows: Keyed<number, WorkerRow>;
  private readonly visible: Visibility;

  constructor(root: HTMLElement, context: Context) {
    this.section = new Section(root, 'Workers', true, () => {
      context.redraw(this);
    });
    this.phases = new PhaseSummary(this.section.body);
    const body = makeTable(this.section.body, 'psnb-workers', 'Workers', COLUMNS);
    const parts = new Map<Element, Row>();
    this.visible = new Visibility(null, (rows) => {
      for (const row of rows) parts.get(row)?.draw();
    });
    this.rows = new Keyed(body, (worker) => {
      const row = new Row(worker, this, context);
      row.draw();
      parts.set(row.root, row);
      this.visible.watch(row.root);
      return {
        root: row.root,
        update: (item): void => {
          row.update(item);
        },
        dispose: (): void => {
          parts.delete(row.root);
          this.visible.forget(row.root);
        },
      };
    });
  }

  /** Whether a row can be seen. */
  shows(row: Element): boolean {
    return this.visible.has(row);
  }

  update(state: State): void {
    this.reason = state.controls.retire_worker ?? '';
    const workers = [...state.workers.values()].sort((a, b) => a.index - b.index);
    let ready = 0;
    let lost = 0;
    for (const worker of workers) {
      if (worker.state === 'ready') ready++;
      if (worker.state === 'lost') lost++;
    }
    const note = `${plural(workers.length, 'worker')}, ${formatCount(ready)} ready`;
    this.section.describe(lost ? `${note}, ${formatCount(lost)} lost` : note);
    if (!this.section.open) return;
    this.phases.update(state);
    this.rows.update(workers.map((worker) => [worker.index, worker]));
  }

  dispose(): void {
    this.visible.dispose();
  }
}
