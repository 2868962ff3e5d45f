// Which coordinators belong to the document that people look at.

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { Signal, type ISignal } from '@lumino/signaling';

import type { Source } from './protocol';

/** The document in front: its path on the server, and the id of its kernel if it has one. */
export interface Document {
  path: string;
  kernel: string;
}

/** Sources of a document's kernel; while it has none, those of the same path. */
export function sourcesOf(document: Document | null, sources: readonly Source[]): Source[] {
  if (!document) {
    return [];
  }
  return sources.filter(
    (source) =>
      source.gone === '' &&
      (document.kernel ? source.kernel === document.kernel : source.notebook === document.path),
  );
}

export class Active {
  constructor(
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly documents: IDocumentManager,
  ) {
    shell.currentChanged?.connect(() => this._changed.emit());
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get document(): Document | null {
    const widget = this.shell.currentWidget;
    const context = widget ? this.documents.contextForWidget(widget) : undefined;
    return context
      ? { path: context.path, kernel: context.sessionContext.session?.kernel?.id ?? '' }
      : null;
  }

  private readonly _changed = new Signal<this, void>(this);
}
