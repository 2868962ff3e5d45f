// What people set in JupyterLab's settings, followed live, and redraws no more often than that.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IDisposable } from '@lumino/disposable';
import { Throttler } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

/** The twin of schema/preferences.json, which explains each. */
export interface Values {
  redraws: number;
  seconds: number;
}

export class Preferences {
  get values(): Readonly<Values> {
    return this._values;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Take over what is set, now and whenever it changes. */
  follow(settings: ISettingRegistry.ISettings): void {
    const read = () => {
      this._values = { ...this._values, ...(settings.composite as Partial<Values>) };
      this._changed.emit();
    };
    settings.changed.connect(read);
    read();
  }

  private _values: Values = { redraws: 4, seconds: 60 };
  private readonly _changed = new Signal<this, void>(this);
}

/** Draws no more often than people set, however fast news arrive. */
export class Redraw implements IDisposable {
  constructor(
    private readonly draw: () => void,
    private readonly preferences: Preferences,
  ) {
    this.throttler = this.make();
    preferences.changed.connect(this.remake);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Draw soon. */
  request(): void {
    // An invocation that ends with the throttler is rejected: there is nothing left to draw then.
    this.throttler.invoke().catch(() => undefined);
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this.preferences.changed.disconnect(this.remake);
      this.throttler.dispose();
    }
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

  private throttler: Throttler;
  private _isDisposed = false;
}
