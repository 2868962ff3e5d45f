// A coordinator's dashboard in the main area: the one of the widget, fed by the hub.

import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { psnbIcon } from './commands';
import { Dashboard } from './dashboard/dashboard';
import type { Store } from './dashboard/store';
import type { Hub } from './hub';

export class DashboardPanel extends Widget {
  private readonly reason = document.createElement('div');
  private readonly place = document.createElement('div');
  private store: Store | undefined;
  private drawn: Store | undefined;
  private dashboard: Dashboard | undefined;

  constructor(
    readonly coordinator: string,
    private readonly hub: Hub,
  ) {
    super();
    this.addClass('psnb-DashboardPanel');
    this.reason.className = 'psnb-DashboardPanel-reason';
    this.reason.setAttribute('role', 'status');
    this.place.className = 'psnb-DashboardPanel-place';
    this.node.append(this.reason, this.place);
    this.title.icon = psnbIcon;
    this.title.closable = true;
    hub.changed.connect(this.news, this); // until it is disposed of
    hub.updated.connect(this.news, this);
    this.news();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.news();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.news();
  }

  override dispose(): void {
    this.dashboard?.dispose();
    super.dispose();
  }

  private readonly news = (): void => {
    // A coordinator that the hub forgets and meets again has a new store; one that is gone for good
    // stays to be read.
    this.store = this.hub.store(this.coordinator) ?? this.store;
    // Colors can be read only once it is in the page.
    if (this.store && this.store !== this.drawn && this.isVisible) {
      this.drawn = this.store;
      this.build(this.store);
    }
    const reason = this.why();
    this.reason.textContent = reason;
    this.reason.hidden = reason === '';
    this.title.label = this.name();
    this.title.caption = this.hub.source(this.coordinator)?.notebook ?? '';
  };

  private build(store: Store): void {
    this.dashboard?.dispose();
    this.place.replaceChildren();
    this.dashboard = new Dashboard(this.place, store, (command) => this.hub.forward(command));
  }

  /** Why nothing, or nothing new, is to be seen. */
  private why(): string {
    const { reach } = this.hub;
    if (reach.state === 'unreachable') {
      return `Hub unreachable. ${reach.reason}`;
    }
    if (reach.state === 'connecting') {
      return 'Connecting to the hub on the Jupyter server…';
    }
    const source = this.hub.source(this.coordinator);
    if (!source) {
      return this.store
        ? 'This coordinator is gone; here are its last figures.'
        : 'This coordinator is gone, and so are its figures. A new one appears in the panel “psnb”.';
    }
    if (this.store) return ''; // It shows by itself why nothing new comes.
    return source.gone || 'This coordinator has sent nothing yet.';
  }

  /** Not the notebook's own title, whose tab may be next to it. */
  private name(): string {
    const file = this.hub.source(this.coordinator)?.notebook.split('/').pop();
    return `${this.store?.state?.identity.name || file || 'psnb'} - dashboard`;
  }
}

/** Make a dashboard to be put into the main area. */
export function makeDashboard(coordinator: string, hub: Hub): MainAreaWidget<DashboardPanel> {
  const content = new DashboardPanel(coordinator, hub);
  const widget = new MainAreaWidget({ content });
  widget.toolbar.hide();
  widget.id = `psnb-dashboard-${coordinator}`;
  return widget;
}
