// The dashboard of one coordinator: brings its parts up to date, once a frame at most and only
// those that changed.

import type { Command } from '../protocol';
import { Commands } from './commands';
import { Controls } from './controls';
import { Counters } from './counters';
import { make, setHidden, setText } from './dom';
import { Events } from './events';
import { Failures } from './failures';
import { Header } from './header';
import { Metrics } from './metrics';
import { Optimizers } from './optimizers';
import type { Change, Context, Part } from './part';
import { Servers } from './servers';
import { PARTS, type Store } from './store';
import { Theme } from './theme';
import { Timeline } from './timeline';
import { Workers } from './workers';

// Milliseconds of a frame that are spent on updates; the browser needs the rest.
const BUDGET = 6;

export class Dashboard {
  private readonly root: HTMLElement;
  private readonly body: HTMLElement;
  private readonly problem: HTMLElement;
  private readonly parts: Part[];
  private readonly commands: Commands;
  private readonly theme: Theme;
  private readonly ignore: () => void;
  private readonly stale = new Set<Part>(); // parts that are to be updated
  private frame = 0;

  /**
   * Draws into `el` what `store` has, now and later; `send` takes the commands that are given.
   */
  constructor(
    el: HTMLElement,
    private readonly store: Store,
    send: (command: Command) => void,
  ) {
    this.root = make('div', 'psnb-dashboard', el);
    // In a cell, JupyterLab would take keys for its own: arrows select cells, letters add some.
    this.root.dataset['lmSuppressShortcuts'] = 'true';
    this.problem = make('div', 'psnb-problem', this.root);
    this.problem.setAttribute('role', 'status');
    this.body = make('div', '', this.root);
    this.body.setAttribute('role', 'group');
    this.theme = new Theme(this.root, () => {
      for (const part of this.parts) part.recolor?.();
    });
    this.commands = new Commands(store, send, () => {
      this.mark(['commands']);
    });
    const context: Context = {
      commands: this.commands,
      theme: this.theme,
      redraw: (part) => {
        this.stale.add(part);
        this.schedule();
      },
    };
    this.parts = [
      new Header(this.body),
      new Counters(this.body),
      new Controls(this.body, context),
      new Metrics(this.body, context),
      new Workers(this.body, context),
      new Timeline(this.body, context),
      new Servers(this.body, context),
      new Optimizers(this.body, context),
      new Failures(this.body, context),
      new Events(this.body, context),
    ];
    this.ignore = store.listen({
      changed: (parts) => {
        this.mark(parts);
      },
    });
    this.mark(PARTS);
    this.draw(Infinity); // At once: a page that is being restored shows its figures without a blink.
  }

  /** Ends all that goes on and empties the element. */
  dispose(): void {
    cancelAnimationFrame(this.frame);
    this.ignore();
    this.commands.dispose();
    this.theme.dispose();
    for (const part of this.parts) part.dispose?.();
    this.root.remove();
  }

  private mark(changes: Iterable<Change>): void {
    const changed = new Set(changes);
    for (const part of this.parts) {
      if (part.needs.some((need) => changed.has(need))) this.stale.add(part);
    }
    this.schedule();
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(BUDGET);
    });
  }

  /** Updates the stale parts; those that `budget` milliseconds are too few for, a frame later. */
  private draw(budget: number): void {
    this.theme.attached();
    const { state, problem } = this.store;
    setText(this.problem, problem);
    setHidden(this.problem, !problem);
    setHidden(this.body, !state);
    if (!state) return; // All parts are stale when there is one.
    const end = performance.now() + budget;
    for (const part of [...this.stale]) {
      this.stale.delete(part);
      part.update(state, end);
      if (performance.now() >= end) break;
    }
    if (this.stale.size) this.schedule();
  }
}
