// The panel's list of schedulers that were attached by hand.

import { closeIcon, ReactWidget } from '@jupyterlab/ui-components';

import { Action } from './action';
import type { Hub } from './hub';

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
        {this.hub.schedulers.map(({ address, error }) => (
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
                {error ? 'no answer' : 'attached'}
              </span>
            </div>
            {error && <div className="psnb-Entry-notice">{error}</div>}
          </li>
        ))}
      </ul>
    );
  }

  private readonly news = (): void => {
    this.update();
  };
}
