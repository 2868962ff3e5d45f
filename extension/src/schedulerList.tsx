// The panel's list of schedulers that were attached by hand.

import { closeIcon, ReactWidget } from '@jupyterlab/ui-components';

import { Action } from './action';
import type { Hub } from './hub';
import { since } from './listing';

const NOBODY = 'No coordinator outside of Jupyter has reported to it yet.';

export class SchedulerList extends ReactWidget {
  constructor(
    private readonly hub: Hub,
    private readonly detach: (address: string) => void,
  ) {
    super();
    this.addClass('psnb-SchedulerList');
    hub.changed.connect(this.news);
  }

  override dispose(): void {
    this.hub.changed.disconnect(this.news);
    super.dispose();
  }

  protected override render() {
    if (this.hub.schedulers.length === 0) {
      return (
        <div className="psnb-Blank">
          <p>
            To see a cluster that was started from the command line, attach its address, such as
            host:8786, or that of its dashboard, such as http://host:8787.
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

  private readonly news = (): void => {
    this.update();
  };
}
