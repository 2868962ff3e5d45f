// The dashboard of one coordinator: brings its sections up to date, once a frame at most and only
// those that changed. The notebook's widget and JupyterLab's panel draw with it.

import type { Command } from '../protocol';
import { Commands } from './commands';
import { Controls } from './controls';
import { make, setHidden, setText } from './dom';
import { Counters, Header } from './header';
import { Events, Failures, Optimizers } from './lists';
import { Metrics } from './metrics';
import { Theme, type Change, type Context, type Section } from './section';
import { PARTS, type Store } from './store';
import { Servers, Workers } from './tables';
import { Timeline } from './timeline';

// Milliseconds of a frame that are spent on updates; the browser needs the rest.
const BUDGET = 6;

export class Dashboard {
  private readonly root: HTMLElement;
  private readonly body: HTMLElement;
  private readonly problem: HTMLElement;
  private readonly sections: Section[];
  private readonly commands: Commands;
  private readonly theme: Theme;
  private readonly ignore: () => void;
  private readonly stale = new Set<Section>(); // those that are to be updated
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
      for (const section of this.sections) section.recolor?.();
    });
    this.commands = new Commands(store, send, () => {
      this.mark(['commands']);
    });
    const context: Context = {
      commands: this.commands,
      theme: this.theme,
      redraw: (section) => {
        this.stale.add(section);
        this.schedule();
      },
    };
    this.sections = [
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
    for (const section of this.sections) section.dispose?.();
    this.root.remove();
  }

  private mark(changes: Iterable<Change>): void {
    const changed = new Set(changes);
    for (const section of this.sections) {
      if (section.needs.some((need) => changed.has(need))) this.stale.add(section);
    }
    this.schedule();
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(BUDGET);
    });
  }

  /** Updates what is stale; what does not fit into `budget` milliseconds, with the next frame. */
  private draw(budget: number): void {
    this.theme.attached();
    const { state, problem } = this.store;
    setText(this.problem, problem);
    setHidden(this.problem, !problem);
    setHidden(this.body, !state);
    if (!state) return; // All are stale when there is one.
    const end = performance.now() + budget;
    for (const section of [...this.stale]) {
      this.stale.delete(section);
      section.update(state, end);
      if (performance.now() >= end) break;
    }
    if (this.stale.size) this.schedule();
  }
}
