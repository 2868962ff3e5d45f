// What the time of closures goes to: a bar of five parts, and the legend for all such bars.

import { make, setHidden, setText } from './dom';
import { formatShare } from './format';
import type { State } from './store';

/** The phases in the order of their shares, and what each is. */
const PHASES: readonly (readonly [name: string, title: string])[] = [
  ['read', "Getting arguments, and next on the iterators of datasets"],
  ['pull', 'Reads and lookups of parameters'],
  ['compute', "All else that the closures' functions do"],
  ['push', 'Handing over gradients and other writes'],
  ['commit', "From the end of the function until the servers have its writes"],
];

/** A bar whose parts are in the colours of the phases. The figures beside it say the same. */
export class PhaseBar {
  private readonly parts: HTMLElement[];

  constructor(parent: Element, className: string) {
    const root = make('span', className, parent);
    root.setAttribute('aria-hidden', 'true');
    this.parts = PHASES.map(([name]) => {
      const part = make('span', 'psnb-phase', root);
      part.dataset['phase'] = name;
      return part;
    });
  }

  /** Fills so much of the bar, divided by the shares; all of one colour if none is known. */
  update(shares: readonly number[], filled: number): void {
    const known = shares.some((share) => share > 0);
    this.parts.forEach((part, i) => {
      const share = known ? (shares[i] ?? 0) : Number(PHASES[i]?.[0] === 'compute');
      const width = `${(100 * filled * share).toFixed(1)}%`;
      if (part.style.width !== width) part.style.width = width;
    });
  }
}

/** Where the time of all workers' closures goes, in a bar and in figures, and for what they wait. */
export class PhaseSummary {
  private readonly root: HTMLElement;
  private readonly bar: PhaseBar;
  private readonly figures: HTMLElement[];
  private readonly starved: HTMLElement;

  constructor(parent: Element) {
    this.root = make('div', 'psnb-phases', parent);
    this.bar = new PhaseBar(this.root, 'psnb-phase-bar');
    const legend = make('div', 'psnb-phase-legend', this.root);
    legend.setAttribute('role', 'group');
    legend.setAttribute('aria-label', 'What the time of closures goes to');
    this.figures = PHASES.map(([name, title]) => {
      const entry = make('span', 'psnb-phase-entry', legend);
      entry.title = title;
      const swatch = make('span', 'psnb-phase psnb-phase-swatch', entry);
      swatch.dataset['phase'] = name;
      swatch.setAttribute('aria-hidden', 'true');
      return make('span', '', entry, name);
    });
    this.starved = make('div', 'psnb-starved', this.root);
    this.starved.setAttribute('role', 'status');
  }

  update({ summary, starved }: State): void {
    const { phases } = summary;
    setHidden(this.root, !phases.some((share) => share > 0));
    this.bar.update(phases, 1);
    this.figures.forEach((figure, i) => {
      setText(figure, `${PHASES[i]?.[0] ?? ''} ${formatShare(phases[i] ?? 0)}`);
    });
    setText(this.starved, starved);
  }
}
