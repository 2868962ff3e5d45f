// Several coordinators' curves over each other, in the main area: a chart for each metric, with a line
// for each coordinator.

import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { psnbIcon } from './commands';
import { over, type Run } from './comparing';
import { sharedAxis } from './dashboard/axes';
import { Chart, type Modes } from './dashboard/chart';
import { make, setAttribute, setText, Theme } from './dashboard/section';
import type { Store } from './dashboard/store';
import type { Hub } from './hub';

const EVERY = 500; // milliseconds between two drawings

class ComparisonPanel extends Widget {
  private readonly stores = new Map<string, Store>();
  private readonly modes: Modes = { raw: false, smoothed: true, byTime: false };
  private readonly charts = new Map<string, Chart>();
  private readonly nothing: HTMLElement;
  private readonly place: HTMLElement;
  private readonly theme: Theme;
  private timer = 0;

  constructor(
    private readonly coordinators: readonly string[],
    private readonly hub: Hub,
  ) {
    super();
    this.addClass('psnb-DashboardPanel');
    const root = make('div', 'psnb-dashboard', this.node);
    this.theme = new Theme(root, () => {
      for (const chart of this.charts.values()) chart.recolor();
    });
    const bar = make('div', 'psnb-toggles', root);
    bar.setAttribute('role', 'group');
    bar.setAttribute('aria-label', 'What the charts show');
    this.toggle(bar, 'raw', 'Raw', 'Show the values as they were reported');
    this.toggle(bar, 'byTime', 'By time', 'Place values by the time since the first of their run');
    this.nothing = make('div', 'psnb-problem', root);
    this.place = make('div', 'psnb-charts', root);
    this.title.icon = psnbIcon;
    this.title.label = 'Comparison - psnb';
    this.title.closable = true;
    hub.updated.connect(this.news, this); // until it is disposed of
    hub.changed.connect(this.news, this);
  }

  override dispose(): void {
    clearTimeout(this.timer);
    for (const chart of this.charts.values()) chart.dispose();
    this.theme.dispose();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.draw();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.draw();
  }

  private toggle(bar: Element, mode: 'raw' | 'byTime', label: string, title: string): void {
    const button = make('button', 'psnb-button psnb-toggle', bar, label);
    button.type = 'button';
    button.title = title;
    setAttribute(button, 'aria-pressed', String(this.modes[mode]));
    button.addEventListener('click', () => {
      this.modes[mode] = !this.modes[mode];
      setAttribute(button, 'aria-pressed', String(this.modes[mode]));
      this.draw();
    });
  }

  private readonly news = (): void => {
    this.timer ||= window.setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, EVERY);
  };

  private readonly draw = (): void => {
    if (this.isDisposed || !this.isVisible) return;
    this.theme.attached();
    for (const coordinator of this.coordinators) {
      const store = this.hub.store(coordinator); // One that is gone stays to be read.
      if (store) this.stores.set(coordinator, store);
    }
    const runs: Run[] = this.coordinators.map((coordinator) => {
      const state = this.stores.get(coordinator)?.state;
      return { name: state?.identity.name ?? '', metrics: state?.metrics ?? new Map() };
    });
    const compared = over(runs, this.modes.byTime);
    const along = sharedAxis([...compared.values()].flat(), [], this.modes.byTime);
    setText(this.nothing, compared.size ? '' : 'No metric was reported yet.');
    for (const [name, lines] of compared) {
      let chart = this.charts.get(name);
      if (!chart) {
        const cell = make('div', 'psnb-chart', this.place);
        make('div', 'psnb-metric-name', cell, name).title = name;
        chart = new Chart(cell, name, true, this.modes, this.theme, this.draw);
        this.charts.set(name, chart);
      }
      chart.update(lines, along);
    }
  };
}

/** Make a comparison to be put into the main area. */
export function makeComparison(coordinators: readonly string[], hub: Hub): Widget {
  const widget = new MainAreaWidget({ content: new ComparisonPanel(coordinators, hub) });
  widget.toolbar.hide();
  return widget;
}
