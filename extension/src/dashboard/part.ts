// What the dashboard's parts have in common.

import type { Commands } from './commands';
import type { Part as StatePart, State } from './store';
import type { Theme } from './theme';

/** What may have changed; `commands`: what is under way, or what came of it. */
export type Change = StatePart | 'commands';

/** A part of the dashboard. */
export interface Part {
  /** What it shows: it is updated when one of these has changed, and at first. */
  readonly needs: readonly Change[];
  /**
   * Brings the page in line with the state; called once a frame at most. What is not done when
   * `performance.now()` has reached `end` is better left to the next frame, by `redraw`.
   */
  update(state: State, end: number): void;
  /** Draws again what was drawn with the theme's colours. */
  recolor?(): void;
  dispose?(): void;
}

/** What parts get from the dashboard. */
export interface Context {
  readonly commands: Commands;
  readonly theme: Theme;
  /** Has a part updated with the next frame: it came into view, or was folded open. */
  redraw(part: Part): void;
}
