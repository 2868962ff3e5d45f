// What people set in JupyterLab's settings, followed live.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
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
