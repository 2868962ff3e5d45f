// The rows of the dashboard: tables of workers, with what their time goes to, and of parameter
// servers; lists of learning rates with a field to set them, of failures and of events.

import type { EventRow, FailureRow, Num, OptimizerRow, ServerRow, WorkerRow } from '../protocol';
import { ActionButton } from './commands';
import {
  formatBytes,
  formatClock,
  formatCount,
  formatNumber,
  formatRate,
  formatShare,
  plural,
} from './format';
import { WorkerOutput } from './output';
import {
  Fold,
  Keyed,
  make,
  makeWord,
  setAttribute,
  setData,
  setHidden,
  setText,
  Visibility,
  type Context,
  type Item,
  type Section,
} from './section';
import { MAX_ROWS, toNumber, type State } from './store';

const WORKER_COLUMNS: readonly ColumnTitle[] = [
  ['worker', 'Name in the cluster, host, what takes it long at the moment, and last error; a click on the name shows its output'],
  ['state', 'connecting, ready, draining (it leaves), retired (it has left) or lost'],
  ['in flight', 'Closures it holds'],
  ['completed', 'Closures that ended well there, and those that raised'],
  ['per s', 'Closures that ended there, per second'],
  ['examples/s', 'Examples that its closures report, per second'],
  ['busy', "Share of its threads' time spent inside closures lately, and what that went to"],
  ['CPU', 'CPU time of its process lately; 100% is one core'],
  ['memory', 'Memory of its process, and of GPUs if it uses some'],
  ['', 'Retire the worker'],
];

/** The workers, one row each. Rows out of view are brought up to date when they come into it. */
export class Workers implements Section {
  readonly needs = ['workers', 'controls', 'commands', 'summary', 'starved'] as const;
  /** Why no worker can be retired; empty if they can. */
  reason = '';

  /** What a worker's closures have printed. */
  readonly output: WorkerOutput;
  /** Why no output can be shown; empty if it can. */
  silent = '';

  private readonly fold: Fold;
  private readonly phases: PhaseSummary;
  private readonly rows: Keyed<number, WorkerRow>;
  private readonly visible = new Visibility();

  constructor(root: HTMLElement, context: Context) {
    this.fold = new Fold(root, 'Workers', true, context, this);
    this.phases = new PhaseSummary(this.fold.body);
    const body = makeTable(this.fold.body, 'psnb-workers', 'Workers', WORKER_COLUMNS);
    this.rows = new Keyed(body, (worker) => new WorkerItem(worker, this, this.visible, context));
    this.output = new WorkerOutput(this.fold.body, context);
  }

  update(state: State): void {
    this.reason = state.controls.retire_worker ?? '';
    this.silent = state.controls.worker_output ?? '';
    this.output.update(this.silent);
    const workers = [...state.workers.values()].sort((a, b) => a.index - b.index);
    const inState = (name: string): number => workers.filter(({ state }) => state === name).length;
    const lost = inState('lost');
    const note = `${plural(workers.length, 'worker')}, ${formatCount(inState('ready'))} ready`;
    this.fold.describe(lost ? `${note}, ${formatCount(lost)} lost` : note);
    if (!this.fold.open) return;
    this.phases.update(state);
    this.rows.update(workers.map((worker) => [worker.index, worker]));
  }

  dispose(): void {
    this.visible.dispose();
  }
}

class WorkerItem implements Item<WorkerRow> {
  readonly root: HTMLTableRowElement;
  private readonly name: HTMLButtonElement;
  private readonly host: HTMLElement;
  private readonly activity: HTMLElement;
  private readonly error: HTMLElement;
  private readonly state: HTMLElement;
  private readonly cells: HTMLElement[];
  private readonly failed: HTMLElement;
  private readonly share: HTMLElement;
  private readonly bar: PhaseBar;
  private readonly cpu: HTMLElement;
  private readonly memory: HTMLElement;
  private readonly gpuMemory: HTMLElement;
  private readonly retire: ActionButton;
  private worker: WorkerRow;
  private drawn: WorkerRow | null = null;

  constructor(
    worker: WorkerRow,
    private readonly table: Workers,
    private readonly visible: Visibility,
    private readonly context: Context,
  ) {
    this.worker = worker;
    const { root, head } = makeRow();
    this.root = root;
    this.name = make('button', 'psnb-row-name psnb-row-link', head);
    this.name.type = 'button';
    this.name.addEventListener('click', () => {
      if (!this.table.silent) this.table.output.ask(this.worker.name);
    });
    this.host = makeWord('psnb-address', head);
    this.activity = makeWord('psnb-row-activity', head);
    this.error = makeWord('psnb-row-error', head);
    this.state = make('span', 'psnb-state', makeCell(root));
    const flying = makeCell(root);
    const ended = makeCell(root);
    const completed = make('span', '', ended);
    this.failed = make('span', 'psnb-row-failed', ended);
    this.failed.dataset['bad'] = 'true';
    this.cells = [flying, completed, makeCell(root), makeCell(root)];
    const busy = makeCell(root);
    this.share = make('span', '', busy);
    this.bar = new PhaseBar(busy, 'psnb-bar');
    this.cpu = makeCell(root);
    const memory = makeCell(root);
    this.memory = make('span', '', memory);
    this.gpuMemory = makeWord('psnb-gpu', memory);
    this.retire = new ActionButton(
      makeCell(root, 'psnb-retire'),
      () => {
        const { name } = this.worker;
        context.commands.give('retire_worker', { worker: name }, name);
      },
      'Let it end what it holds, then take it out of the cluster',
      () => `Really retire ${this.worker.name}?`,
    );
    this.draw();
    visible.watch(root, () => {
      this.draw();
    });
  }

  update(worker: WorkerRow): void {
    this.worker = worker;
    if (this.visible.has(this.root)) this.draw();
  }

  dispose(): void {
    this.visible.forget(this.root);
  }

  private draw(): void {
    const { worker } = this;
    const { commands } = this.context;
    const shows = this.table.silent || 'Show what its closures have printed';
    setAttribute(this.name, 'aria-disabled', String(!!this.table.silent));
    setAttribute(this.name, 'aria-description', shows);
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
      known(worker.examples_per_second, formatRate),
    ];
    this.cells.forEach((cell, i) => {
      setText(cell, texts[i] ?? '');
    });
    setText(this.failed, worker.failed ? ` ${formatCount(worker.failed)} failed` : '');
    const busy = toNumber(worker.busy);
    setText(this.share, formatShare(busy));
    this.bar.update(worker.phases, Math.min(1, busy));
    setText(this.cpu, known(worker.cpu, formatShare));
    setText(this.memory, known(worker.memory, formatBytes));
    setText(this.gpuMemory, worker.gpu_memory === null ? '' : `GPU ${formatBytes(worker.gpu_memory)}`);
  }
}

/** A figure as text; a dash if it is not known. */
function known(value: Num | null, format: (value: number) => string): string {
  return value === null ? '–' : format(toNumber(value));
}

/** The phases in the order of their shares, and what each is. */
const PHASES: readonly (readonly [name: string, title: string])[] = [
  ['read', "Getting arguments, and next on the iterators of datasets"],
  ['pull', 'Reads and lookups of parameters'],
  ['compute', "All else that the closures' functions do"],
  ['push', 'Handing over gradients and other writes'],
  ['commit', "From the end of the function until the servers have its writes"],
];

/** A bar in the colours of the phases. The figures next to it say the same. */
class PhaseBar {
  private readonly segments: HTMLElement[];

  constructor(parent: Element, className: string) {
    const root = make('span', className, parent);
    root.setAttribute('aria-hidden', 'true');
    this.segments = PHASES.map(([name]) => {
      const segment = make('span', 'psnb-phase', root);
      segment.dataset['phase'] = name;
      return segment;
    });
  }

  /** Fills so much of the bar, divided by the shares; all of one colour if none is known. */
  update(shares: readonly number[], filled: number): void {
    const known = shares.some((share) => share > 0);
    this.segments.forEach((segment, i) => {
      const share = known ? (shares[i] ?? 0) : Number(PHASES[i]?.[0] === 'compute');
      const width = `${(100 * filled * share).toFixed(1)}%`;
      if (segment.style.width !== width) segment.style.width = width;
    });
  }
}

/** Where the time of all workers' closures goes, in a bar and in figures, and for what they wait. */
class PhaseSummary {
  private readonly root: HTMLElement;
  private readonly bar: PhaseBar;
  private readonly figures: HTMLElement[];
  private readonly starved: HTMLElement;

  constructor(parent: Element) {
    this.root = make('div', 'psnb-phases', parent);
    this.bar = new PhaseBar(this.root, 'psnb-phase-bar');
    const legend = make('div', 'psnb-phase-legend', this.root);
    legend.setAttribute('role', 'group');
    legend.setAttribute('aria-label', 'What the time of closures goes to');
    this.figures = PHASES.map(([name, title]) => {
      const entry = make('span', 'psnb-phase-entry', legend);
      entry.title = title;
      const swatch = make('span', 'psnb-phase psnb-phase-swatch', entry);
      swatch.dataset['phase'] = name;
      swatch.setAttribute('aria-hidden', 'true');
      return make('span', '', entry, name);
    });
    this.starved = make('div', 'psnb-starved', this.root);
    this.starved.setAttribute('role', 'status');
  }

  update({ summary, starved }: State): void {
    const { phases } = summary;
    setHidden(this.root, !phases.some((share) => share > 0));
    this.bar.update(phases, 1);
    this.figures.forEach((figure, i) => {
      setText(figure, `${PHASES[i]?.[0] ?? ''} ${formatShare(phases[i] ?? 0)}`);
    });
    setText(this.starved, starved);
  }
}

const SERVER_COLUMNS: readonly ColumnTitle[] = [
  ['server', 'Name in the cluster and address'],
  ['state', 'serving, unreachable, lost, or released as the coordinator is closed; unknown if it was not asked yet'],
  ['shards', 'Shards of parameters that it holds'],
  ['bytes', 'Memory of its parameters, with what optimizers keep'],
  ['CPU', 'CPU time of its process lately; 100% is one core'],
  ['memory', 'Memory of its process, and how much it may have: near that it refuses more'],
  ['pulls/s', 'Reads of variables and of rows of embeddings, per second'],
  ['pushes/s', 'Gradients that it takes, per second'],
  ['staleness', 'Mean of the updates lately'],
];

/** The parameter servers, one row each. */
export class Servers implements Section {
  readonly needs = ['servers'] as const;
  /** Where more of them can be shown. */
  readonly body: HTMLElement;
  private readonly fold: Fold;
  private readonly rows: Keyed<string, ServerRow>;

  constructor(root: HTMLElement, context: Context) {
    this.fold = new Fold(root, 'Servers', true, context, this);
    this.body = this.fold.body;
    const label = 'Parameter servers';
    const body = makeTable(this.fold.body, 'psnb-servers', label, SERVER_COLUMNS);
    this.rows = new Keyed(body, makeServer);
  }

  update({ servers }: State): void {
    setHidden(this.fold.root, !servers.length);
    const bytes = servers.reduce((sum, server) => sum + server.bytes, 0);
    this.fold.describe(`${plural(servers.length, 'server')}, ${formatBytes(bytes)}`);
    if (this.fold.open) {
      this.rows.update(servers.map((server) => [`${server.name} ${server.address}`, server]));
    }
  }
}

const MEMORY = SERVER_COLUMNS.findIndex(([label]) => label === 'memory') - 2;

function makeServer(): Item<ServerRow> {
  const { root, head } = makeRow();
  const name = make('span', 'psnb-row-name', head);
  const address = makeWord('psnb-address', head);
  const state = make('span', 'psnb-state', makeCell(root));
  const cells = SERVER_COLUMNS.slice(2).map(() => make('span', '', makeCell(root)));
  const limit = makeWord('psnb-limit', cells[MEMORY]?.parentElement ?? root);
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
        known(server.cpu, formatShare),
        known(server.memory, formatBytes),
        formatRate(toNumber(server.pulls_per_second)),
        formatRate(toNumber(server.pushes_per_second)),
        Number.isNaN(staleness) ? '–' : formatNumber(staleness),
      ];
      cells.forEach((cell, i) => {
        setText(cell, texts[i] ?? '');
      });
      const of = server.memory_limit === null ? '' : `of ${formatBytes(server.memory_limit)}`;
      setText(limit, of);
    },
  };
}

// Rows are laid out one by one: text that changes in one of a hundred rows must not lay out the
// others, as it would in a table of the browser's. The roles say that it is one.

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
  const optimizer = makeWord('psnb-optimizer-class', root);
  const schedule = makeWord('psnb-schedule', root);
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
    this.fold = new Fold(root, 'Learning rates', false, context, this);
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
    context: Context,
    section: Section,
  ) {
    this.fold = new Fold(parent, title, open, context, section);
    this.fold.body.append(list);
    this.rows = new Keyed(list, create);
    list.addEventListener('pointerenter', () => {
      this.hovered = true;
    });
    list.addEventListener('pointerleave', () => {
      this.hovered = false;
      context.redraw(section);
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
    this.list = new Newest(root, 'Failures', true, list, makeFailure, context, this);
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
  makeWord('psnb-failure-error', summary, failure.error);
  makeWord('psnb-failure-where', summary, `${failure.closure} on ${failure.worker}`);
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
    this.list = new Newest(root, 'Events', false, list, makeEvent, context, this);
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
  makeWord('psnb-event-kind', root, event.kind);
  makeWord('psnb-event-worker', root, event.worker);
  makeWord('psnb-event-message', root, event.message);
  return { root, update: () => undefined };
}
