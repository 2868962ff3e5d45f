// The item in the status bar: what is queued and in flight of the notebook in front.

import { TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal, type ISignal } from '@lumino/signaling';

import { sourcesOf, type Active } from './active';
import type { Hub } from './hub';
import { statusText } from './listing';
import type { Preferences } from './preferences';
import { Redraw } from './redraw';

export class Status extends ReactWidget {
  constructor(
    private readonly hub: Hub,
    private readonly active: Active,
    preferences: Preferences,
    private readonly open: () => void,
  ) {
    super();
    this.addClass('jp-mod-highlighted');
    this.addClass('psnb-Status');
    this.redraw = new Redraw(() => this.refresh(), preferences);
    hub.changed.connect(this.news);
    hub.updated.connect(this.news);
    active.changed.connect(this.news);
  }

  /** Whether the notebook in front has a coordinator; otherwise there is nothing to show. */
  get isActive(): boolean {
    return this.summaries().length > 0;
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  override dispose(): void {
    this.hub.changed.disconnect(this.news);
    this.hub.updated.disconnect(this.news);
    this.active.changed.disconnect(this.news);
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

  private summaries() {
    return sourcesOf(this.active.document, this.hub.sources).flatMap(
      (source) => this.hub.store(source.coordinator)?.state?.summary ?? [],
    );
  }

  private readonly news = (): void => {
    this.redraw.request();
  };

  private refresh(): void {
    this._activeChanged.emit();
    this.update();
  }

  private readonly redraw: Redraw;
  private readonly _activeChanged = new Signal<this, void>(this);
}
