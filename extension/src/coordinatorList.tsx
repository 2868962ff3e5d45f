// The panel's list of all coordinators on this server.

import {
  closeIcon,
  launchIcon,
  notebookIcon,
  pauseIcon,
  ReactWidget,
  runIcon,
} from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';

import { Action } from './action';
import { BlankNotice } from './blankNotice';
import type { Hub } from './hub';
import { blank, rows, type Row } from './listing';
import type { Preferences } from './preferences';
import { Redraw } from './redraw';
import { Sparkline } from './sparkline';

/** What can be done from a row. */
export interface RowActions {
  openDashboard(coordinator: string): void;
  openNotebook(path: string): void;
  control(coordinator: string, command: Row['control']['command']): void;
  /** Forget one that is gone. */
  dismiss(coordinator: string): void;
}

export interface CoordinatorListOptions {
  hub: Hub;
  preferences: Preferences;
  actions: RowActions;
  kernelName: (kernel: string) => string;
}

export class CoordinatorList extends ReactWidget {
  constructor(private readonly options: CoordinatorListOptions) {
    super();
    this.addClass('psnb-CoordinatorList');
    this.redraw = new Redraw(() => this.isVisible && this.update(), options.preferences);
    options.hub.changed.connect(this.news);
    options.hub.updated.connect(this.news);
  }

  override dispose(): void {
    this.options.hub.changed.disconnect(this.news);
    this.options.hub.updated.disconnect(this.news);
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
    return (
      <>
        {nothing && <BlankNotice blank={nothing} retry={() => hub.retry()} />}
        <ul className={stale ? 'psnb-mod-stale' : ''} aria-label="Coordinators">
          {list
            .filter((row) => !row.gone)
            .map((row) => (
              <Entry key={row.coordinator} row={row} actions={actions} />
            ))}
        </ul>
        <Earlier list={list.filter((row) => row.gone)} actions={actions} />
      </>
    );
  }

  private readonly news = (): void => {
    this.redraw.request();
  };

  private readonly redraw: Redraw;
}

/** Those that are gone, folded away. */
function Earlier({ list, actions }: { list: Row[]; actions: RowActions }) {
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
          <Entry key={row.coordinator} row={row} actions={actions} />
        ))}
      </ul>
    </details>
  );
}

function Entry({ row, actions }: { row: Row; actions: RowActions }) {
  const { coordinator, control } = row;
  return (
    <li className={`psnb-Entry${row.gone ? ' psnb-mod-gone' : ''}`} data-coordinator={coordinator}>
      <div className="psnb-Entry-head">
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
