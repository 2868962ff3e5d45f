// What JupyterLab shows of all coordinators: the panel in the left sidebar, with the attached schedulers
// below them, and the item in the status bar, of the notebook in front.

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard } from '@jupyterlab/apputils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { TextItem } from '@jupyterlab/statusbar';
import {
  closeIcon,
  CommandToolbarButton,
  copyIcon,
  launchIcon,
  notebookIcon,
  PanelWithToolbar,
  pauseIcon,
  ReactWidget,
  runIcon,
  SidePanel,
  type LabIcon,
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import { AccordionPanel, type Widget } from '@lumino/widgets';

import { CommandIDs, psnbIcon } from './commands';
import type { Hub } from './hub';
import {
  blank,
  rows,
  since,
  sourcesOf,
  statusText,
  type Blank,
  type Document,
  type Row,
} from './listing';
import { Redraw, type Preferences } from './preferences';

/** What can be done from a row. */
interface RowActions {
  openDashboard(coordinator: string): void;
  openNotebook(path: string): void;
  control(coordinator: string, command: Row['control']['command']): void;
  /** Draw the curves of several over each other. */
  compare(coordinators: string[]): void;
  /** Forget one that is gone. */
  dismiss(coordinator: string): void;
}

interface CoordinatorListOptions {
  hub: Hub;
  preferences: Preferences;
  actions: RowActions;
  kernelName: (kernel: string) => string;
}

interface PanelOptions extends CoordinatorListOptions {
  commands: CommandRegistry;
  detach: (address: string) => void;
}

export class Panel extends SidePanel {
  constructor({ commands, detach, ...options }: PanelOptions) {
    super();
    this.id = 'psnb-panel';
    this.addClass('psnb-Panel');
    this.title.icon = psnbIcon;
    this.title.caption = 'psnb: training on this server';
    this.section('Coordinators', new CoordinatorList(options), commands, CommandIDs.pauseAll);
    this.section('Schedulers', new SchedulerList(options.hub, detach), commands, CommandIDs.attach);
    if (this.content instanceof AccordionPanel) {
      this.content.setRelativeSizes([4, 1]);
    }
  }

  private section(label: string, content: Widget, commands: CommandRegistry, id: string): void {
    const section = new PanelWithToolbar();
    section.addClass('psnb-Section');
    section.title.label = label;
    section.toolbar.addItem(id, new CommandToolbarButton({ commands, id, label: '' }));
    section.addWidget(content);
    this.addWidget(section);
  }
}

/** All coordinators on this server. */
class CoordinatorList extends ReactWidget {
  private readonly redraw: Redraw;
  private readonly ticked = new Set<string>();

  constructor(private readonly options: CoordinatorListOptions) {
    super();
    this.addClass('psnb-CoordinatorList');
    const { hub, preferences } = options;
    this.redraw = new Redraw(() => this.isVisible && this.update(), hub, preferences);
  }

  override dispose(): void {
    this.redraw.dispose();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.update();
  }

  protected override render() {
    const { hub, actions, kernelName } = this.options;
    const { seconds } = this.options.preferences.values;
    const list = rows(hub.sources, (coordinator) => hub.store(coordinator), kernelName, seconds);
    const nothing = blank(hub.reach, list.length);
    const stale = hub.reach.state !== 'connected';
    const compared = list.map((row) => row.coordinator).filter((each) => this.ticked.has(each));
    const tick: Tick = {
      has: (coordinator) => this.ticked.has(coordinator),
      toggle: (coordinator) => {
        if (!this.ticked.delete(coordinator)) this.ticked.add(coordinator);
        this.update();
      },
    };
    return (
      <>
        {compared.length > 1 && (
          <button className="psnb-Compare" onClick={() => actions.compare(compared)}>
            Compare the {compared.length} that are ticked
          </button>
        )}
        {nothing && <BlankNotice blank={nothing} retry={() => hub.retry()} />}
        <ul className={stale ? 'psnb-mod-stale' : ''} aria-label="Coordinators">
          {list
            .filter((row) => !row.gone)
            .map((row) => (
              <Entry key={row.coordinator} row={row} actions={actions} tick={tick} />
            ))}
        </ul>
        <Earlier list={list.filter((row) => row.gone)} actions={actions} tick={tick} />
      </>
    );
  }
}

/** Which coordinators are to be compared. */
interface Tick {
  has(coordinator: string): boolean;
  toggle(coordinator: string): void;
}

/** Those that are gone, folded away. */
function Earlier({ list, actions, tick }: { list: Row[]; actions: RowActions; tick: Tick }) {
  if (list.length === 0) {
    return null;
  }
  return (
    <details className="psnb-Earlier">
      <summary>
        Earlier ({list.length})
        <Action
          icon={closeIcon}
          label="Dismiss all that are gone"
          act={() => list.forEach(({ coordinator }) => actions.dismiss(coordinator))}
        />
      </summary>
      <ul aria-label="Earlier coordinators">
        {list.map((row) => (
          <Entry key={row.coordinator} row={row} actions={actions} tick={tick} />
        ))}
      </ul>
    </details>
  );
}

function Entry({ row, actions, tick }: { row: Row; actions: RowActions; tick: Tick }) {
  const { coordinator, control } = row;
  return (
    <li className={`psnb-Entry${row.gone ? ' psnb-mod-gone' : ''}`} data-coordinator={coordinator}>
      <div className="psnb-Entry-head">
        <input
          type="checkbox"
          checked={tick.has(coordinator)}
          onChange={() => tick.toggle(coordinator)}
          title="Tick two or more to compare their curves"
          aria-label={`Compare ${row.title}`}
        />
        <button
          className="psnb-Entry-title"
          title={`Open the dashboard of ${row.title}`}
          onClick={() => actions.openDashboard(coordinator)}
        >
          {row.title}
        </button>
        {row.gone ? (
          <Action
            icon={closeIcon}
            label={`Dismiss ${row.title}`}
            act={() => actions.dismiss(coordinator)}
          />
        ) : (
          <Action
            icon={control.command === 'pause' ? pauseIcon : runIcon}
            label={control.command === 'pause' ? 'Pause' : 'Resume'}
            why={control.why}
            act={() => actions.control(coordinator, control.command)}
          />
        )}
        {row.notebook && (
          <Action
            icon={notebookIcon}
            label={`Open ${row.notebook}`}
            act={() => actions.openNotebook(row.notebook)}
          />
        )}
        <Action
          icon={launchIcon}
          label="Open the dashboard"
          act={() => actions.openDashboard(coordinator)}
        />
      </div>
      <div className="psnb-Entry-detail" title={row.notebook}>
        <span className="psnb-State" data-tone={row.tone} title={row.meaning}>
          {row.state}
        </span>{' '}
        {row.file}
      </div>
      <div className="psnb-Entry-detail" title={row.kernel}>
        {row.kernel}
      </div>
      <div className="psnb-Entry-detail" title={`${row.cluster} ${row.clusterId}`}>
        {row.cluster}
        {row.dashboard && (
          <>
            {' · '}
            <a href={row.dashboard} target="_blank" rel="noopener noreferrer">
              Dask’s dashboard
            </a>
          </>
        )}
      </div>
      {row.clusterSince && (
        <div className="psnb-Entry-detail" title={row.clusterId}>
          cluster {row.clusterSince}
        </div>
      )}
      {row.notice && <div className="psnb-Entry-notice">{row.notice}</div>}
      {!row.gone && row.figures.length > 0 && (
        <>
          <Sparkline values={row.queue} label="Closures queued lately" />
          <div className="psnb-Entry-figures">
            {row.figures.map(({ value, label, alarming }) => (
              <span key={label} className={alarming ? 'psnb-mod-alarming' : ''}>
                <b>{value}</b> {label}
              </span>
            ))}
          </div>
        </>
      )}
    </li>
  );
}

const WIDTH = 100;
const HEIGHT = 20;

/** Points of the line through `values`, from 0 at the bottom to the largest at the top. */
function points(values: readonly number[]): string {
  const top = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  return values
    .map((value, i) => `${(i * step).toFixed(1)},${(HEIGHT * (1 - value / top)).toFixed(1)}`)
    .join(' ');
}

/** A small line of the last figures. */
function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const line = points(values);
  return (
    <svg
      className="psnb-Sparkline"
      viewBox={`0 -1 ${WIDTH} ${HEIGHT + 2}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <polygon points={`0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} />
      <polyline points={line} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

const NOBODY = 'No coordinator outside of Jupyter has reported to it yet.';

/** The schedulers that were attached by hand. */
class SchedulerList extends ReactWidget {
  constructor(
    private readonly hub: Hub,
    private readonly detach: (address: string) => void,
  ) {
    super();
    this.addClass('psnb-SchedulerList');
    hub.changed.connect(() => this.update(), this); // until it is disposed of
  }

  protected override render() {
    if (this.hub.schedulers.length === 0) {
      return (
        <div className="psnb-Blank">
          <p>
            To see a cluster that was started from the command line, attach its address, such as
            host:8786, or that of its dashboard, such as http://host:8787. A folder with checkpoints, such
            as ./checkpoints, lists the runs that were saved there.
          </p>
        </div>
      );
    }
    return (
      <ul aria-label="Schedulers">
        {this.hub.schedulers.map(({ address, error, cluster, coordinators, ...of }) => (
          <li key={address} className="psnb-Entry" data-scheduler={address}>
            <div className="psnb-Entry-head">
              <span className="psnb-Entry-title">{address}</span>
              <Action
                icon={closeIcon}
                label={`Detach ${address}`}
                act={() => this.detach(address)}
              />
            </div>
            <div className="psnb-Entry-detail">
              <span className="psnb-State" data-tone={error ? 'bad' : 'good'}>
                {error ? 'out of reach' : 'attached'}
              </span>
            </div>
            {cluster && (
              <div className="psnb-Entry-detail" title={`${cluster} ${of.cluster_id}`}>
                {cluster}
              </div>
            )}
            {of.cluster_id && (
              <div className="psnb-Entry-detail" title={of.cluster_id}>
                cluster {since(of.cluster_id, of.cluster_started, Date.now() / 1000)}
              </div>
            )}
            {(error || !coordinators) && (
              <div className="psnb-Entry-notice">{error || NOBODY}</div>
            )}
          </li>
        ))}
      </ul>
    );
  }
}

/** Says why there is nothing to see, and what to do about it. */
function BlankNotice({ blank, retry }: { blank: Blank; retry: () => void }) {
  return (
    <div className="psnb-Blank" role="status">
      <div className="psnb-Blank-title">{blank.title}</div>
      <p>{blank.reason}</p>
      {blank.remedy && (
        <div className="psnb-Code">
          <pre>{blank.remedy}</pre>
          <Action icon={copyIcon} label="Copy" act={() => Clipboard.copyToSystem(blank.remedy)} />
        </div>
      )}
      {blank.retry && (
        <button className="jp-mod-styled jp-mod-accept jp-mod-minimal" onClick={retry}>
          Try now
        </button>
      )}
    </div>
  );
}

interface ActionProps {
  icon: LabIcon;
  label: string;
  /** Why it cannot be done, or empty. */
  why?: string;
  act: () => void;
}

/** A button that says why when it cannot be used; it stays focusable so that everyone hears. */
function Action({ icon, label, why = '', act }: ActionProps) {
  return (
    <button
      className="psnb-Action"
      title={why ? `${label}: ${why}` : label}
      aria-label={label}
      aria-disabled={why !== ''}
      onClick={(event) => {
        event.preventDefault(); // in a summary, it would fold what it heads
        if (!why) {
          act();
        }
      }}
    >
      <icon.react tag="span" stylesheet="toolbarButton" />
    </button>
  );
}

export class Status extends ReactWidget {
  readonly activeChanged = new Signal<this, void>(this);
  private readonly redraw: Redraw;

  constructor(
    private readonly hub: Hub,
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly documents: IDocumentManager,
    preferences: Preferences,
    private readonly open: () => void,
  ) {
    super();
    this.addClass('jp-mod-highlighted');
    this.addClass('psnb-Status');
    this.redraw = new Redraw(() => this.refresh(), hub, preferences);
    shell.currentChanged?.connect(this.redraw.request, this.redraw);
  }

  /** Whether the notebook in front has a coordinator; otherwise there is nothing to show. */
  get isActive(): boolean {
    return this.summaries().length > 0;
  }

  override dispose(): void {
    this.redraw.dispose();
    super.dispose();
  }

  protected override render() {
    const all = this.summaries();
    const state = [...new Set(all.map((one) => one.state))].join(', ');
    return (
      <TextItem
        source={statusText(all)}
        title={`Training of this notebook is ${state}. Click to open the panel.`}
        onClick={this.open}
      />
    );
  }

  /** The document in front. */
  private document(): Document | null {
    const widget = this.shell.currentWidget;
    const context = widget ? this.documents.contextForWidget(widget) : undefined;
    return context
      ? { path: context.path, kernel: context.sessionContext.session?.kernel?.id ?? '' }
      : null;
  }

  private summaries() {
    return sourcesOf(this.document(), this.hub.sources).flatMap(
      (source) => this.hub.store(source.coordinator)?.state?.summary ?? [],
    );
  }

  private refresh(): void {
    this.activeChanged.emit();
    this.update();
  }
}
