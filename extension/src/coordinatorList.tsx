// The panel's list of all coordinators on this server.

import {
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
          {list.map((row) => (
            <Entry key={row.coordinator} row={row} actions={actions} />
          ))}
        </ul>
      </>
    );
  }

  private readonly news = (): void => {
    this.redraw.request();
  };

  private readonly redraw: Redraw;
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
        <Action
          icon={control.command === 'pause' ? pauseIcon : runIcon}
          label={control.command === 'pause' ? 'Pause' : 'Resume'}
          why={control.why}
          act={() => actions.control(coordinator, control.command)}
        />
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
      <div className="psnb-Entry-detail" title={row.name}>
        <span className="psnb-State" data-tone={row.tone} title={row.meaning}>
          {row.state}
        </span>{' '}
        {row.name}
      </div>
      <div className="psnb-Entry-detail" title={row.kernel}>
        {row.kernel}
      </div>
      <div className="psnb-Entry-detail" title={row.cluster}>
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
