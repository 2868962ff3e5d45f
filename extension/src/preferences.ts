// What people set in JupyterLab's settings, followed live, and redraws no more often than that.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Throttler } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

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

/** Draws no more often than people set, however fast news arrive. */
export class Redraw {
  private throttler: Throttler;

  constructor(
    private readonly draw: () => void,
    private readonly preferences: Preferences,
  ) {
    this.throttler = this.make();
    preferences.changed.connect(this.remake);
  }

  /** Draw soon. */
  request(): void {
    // An invocation that ends with the throttler is rejected: there is nothing left to draw then.
    this.throttler.invoke().catch(() => undefined);
  }

  dispose(): void {
    this.preferences.changed.disconnect(this.remake);
    this.throttler.dispose();
  }

  private make(): Throttler {
    const limit = 1000 / this.preferences.values.redraws;
    return new Throttler(this.draw, { limit, edge: 'trailing' });
  }

  private readonly remake = (): void => {
    this.throttler.dispose();
    this.throttler = this.make();
    this.request();
  };
}
