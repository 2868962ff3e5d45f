// Who the coordinator is, what state it is in, and how fast it goes.

import { make, setAttribute, setData, setHidden, setText } from './dom';
import { formatCount, formatDuration, formatNumber, formatOf, formatRate } from './format';
import type { Part } from './part';
import { toNumber, type State } from './store';

/** Whether an address may become a link: names come from user code, "javascript:" too. */
export function isWebAddress(text: string): boolean {
  return /^https?:\/\//i.test(text);
}

const LEFT = 'Estimated time until all epochs are over; without training, until all that is queued has ended';

export class Header implements Part {
  readonly needs = ['summary', 'identity', 'notice'] as const;
  private readonly name: HTMLElement;
  private readonly state: HTMLElement;
  private readonly place: HTMLElement;
  private readonly link: HTMLAnchorElement;
  private readonly notice: HTMLElement;
  private readonly figures: Record<string, HTMLElement> = {};

  constructor(private readonly root: HTMLElement) {
    const top = make('div', 'psnb-top', root);
    this.name = make('span', 'psnb-name', top);
    this.state = make('span', 'psnb-state', top);
    this.state.setAttribute('role', 'status');
    this.place = make('span', 'psnb-place', top);
    this.link = make('a', 'psnb-link', top, 'Dask dashboard');
    this.link.target = '_blank';
    this.link.rel = 'noopener noreferrer';
    const figures = make('dl', 'psnb-figures', root);
    const figure = (key: string, label: string, title: string): void => {
      const box = make('div', '', figures);
      box.title = title;
      make('dt', '', box, label);
      this.figures[key] = make('dd', '', box);
    };
    figure('epoch', 'epoch', 'The epoch of the present training, or of the last one');
    figure('batch', 'batch', 'Batches of the epoch that were used, of how many once that is known');
    figure('eta', 'time left', LEFT);
    figure('elapsed', 'elapsed', 'Time since the coordinator started');
    figure('closures', 'closures/s', 'Closures that ended, per second');
    figure('examples', 'examples/s', 'Sum of the metric "examples" that closures report, per second');
    figure('staleness', 'staleness', 'Updates that others made between a pull and the push: mean, maximum');
    this.notice = make('div', 'psnb-notice', root);
    this.notice.setAttribute('role', 'status');
  }

  update({ summary, identity, notice }: State): void {
    setText(this.name, identity.name || 'Coordinator');
    setAttribute(this.root, 'aria-label', `Coordinator ${identity.name}`.trim());
    setText(this.state, summary.state);
    setData(this.state, 'tone', summary.tone);
    setAttribute(this.state, 'title', summary.meaning);
    const place = identity.host && `${identity.host}, process ${identity.process}`;
    setText(this.place, place);
    setAttribute(this.place, 'title', identity.cluster && `Cluster ${identity.cluster}`);
    const linked = isWebAddress(identity.dashboard);
    setHidden(this.link, !linked);
    if (linked) setAttribute(this.link, 'href', identity.dashboard);
    const { training } = summary;
    this.show('epoch', training?.epoch ? formatOf(training.epoch, training.epochs) : '');
    this.show('batch', training ? formatOf(training.batch, training.batches) : '');
    const most = training?.batches ?? 0;
    // Its digits grow in number, and must not move what is beside them.
    this.figures['batch']?.style.setProperty('min-width', most ? `${formatOf(most, most).length}ch` : '');
    this.figure('elapsed', formatDuration(summary.elapsed));
    this.figure('eta', summary.eta === null ? '' : formatDuration(toNumber(summary.eta)));
    this.figure('closures', formatRate(toNumber(summary.closures_per_second)));
    const examples = summary.examples_per_second;
    this.figure('examples', examples === null ? '' : formatRate(toNumber(examples)));
    const mean = toNumber(summary.staleness_mean);
    const staleness = `${formatNumber(mean)}, ${formatCount(summary.staleness_max)}`;
    this.figure('staleness', Number.isNaN(mean) ? '' : staleness);
    setText(this.notice, notice);
  }

  /** Shows a figure, or nothing of it if there is none. */
  private show(key: string, text: string): void {
    const box = this.figures[key]?.parentElement;
    if (box) setHidden(box, !text);
    this.figure(key, text);
  }

  private figure(key: string, text: string): void {
    const node = this.figures[key];
    if (node) setText(node, text || '–');
  }
}
