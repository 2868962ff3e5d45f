// The item in the status bar: what is queued and in flight of the notebook in front.

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';

import type { Hub } from './hub';
import { sourcesOf, statusText, type Document } from './listing';
import { Redraw, type Preferences } from './preferences';

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
    this.redraw = new Redraw(() => this.refresh(), preferences);
    hub.changed.connect(this.news);
    hub.updated.connect(this.news);
    shell.currentChanged?.connect(this.news);
  }

  /** Whether the notebook in front has a coordinator; otherwise there is nothing to show. */
  get isActive(): boolean {
    return this.summaries().length > 0;
  }

  override dispose(): void {
    this.hub.changed.disconnect(this.news);
    this.hub.updated.disconnect(this.news);
    this.shell.currentChanged?.disconnect(this.news);
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

  private readonly news = (): void => {
    this.redraw.request();
  };

  private refresh(): void {
    this.activeChanged.emit();
    this.update();
  }
}
