// Draws no more often than people set, however fast news arrive.

import type { IDisposable } from '@lumino/disposable';
import { Throttler } from '@lumino/polling';

import type { Preferences } from './preferences';

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
