// What people set in JupyterLab's settings, followed live, and redraws no more often than that.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Throttler } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { Hub } from './hub';

/** The twin of schema/preferences.json, which explains each. */
export interface Values {
  redraws: number;
  seconds: number;
}

export class Preferences {
  values: Readonly<Values> = { redraws: 4, seconds: 60 };
  readonly changed = new Signal<this, void>(this);

  /** Take over what is set, now and whenever it changes. */
  follow(settings: ISettingRegistry.ISettings): void {
    const read = () => {
      this.values = { ...this.values, ...(settings.composite as Partial<Values>) };
      this.changed.emit();
    };
    settings.changed.connect(read);
    read();
  }
}

/** Draws when the hub has news or preferences change, no more often than people set. */
export class Redraw {
  private throttler: Throttler | undefined;
  private limit = 0;

  constructor(
    private readonly draw: () => void,
    hub: Hub,
    private readonly preferences: Preferences,
  ) {
    for (const signal of [hub.changed, hub.updated, preferences.changed]) {
      signal.connect(this.request, this);
    }
  }

  dispose(): void {
    Signal.clearData(this);
    this.throttler?.dispose();
  }

  /** Draw soon. */
  readonly request = (): void => {
    const limit = 1000 / this.preferences.values.redraws;
    if (!this.throttler || limit !== this.limit) {
      this.throttler?.dispose();
      this.limit = limit;
      this.throttler = new Throttler(this.draw, { limit, edge: 'trailing' });
    }
    // An invocation that ends with the throttler is rejected: there is nothing left to draw then.
    this.throttler.invoke().catch(() => undefined);
  };
}
