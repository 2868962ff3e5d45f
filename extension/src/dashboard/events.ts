// What happened, newest first.

import type { EventRow } from '../protocol';
import { Hover, Keyed, make, Section, setHidden, type Item } from './dom';
import { formatClock, formatCount } from './format';
import type { Context, Part } from './part';
import type { State } from './store';

function makeEvent(event: EventRow): Item<EventRow> {
  const root = make('li', 'psnb-event', null);
  make('span', 'psnb-clock', root, formatClock(event.time));
  make('span', 'psnb-event-kind', root, event.kind);
  make('span', 'psnb-event-worker', root, event.worker);
  make('span', 'psnb-event-message', root, event.message);
  return { root, update: () => undefined };
}

export class Events implements Part {
  readonly needs = ['events'] as const;
  private readonly section: Section;
  private readonly rows: Keyed<EventRow, EventRow>;
  private readonly hover: Hover;

  constructor(root: HTMLElement, context: Context) {
    const redraw = (): void => {
      context.redraw(this);
    };
    this.section = new Section(root, 'Events', false, redraw);
    const list = make('ol', 'psnb-scroller psnb-events', this.section.body);
    list.setAttribute('aria-label', 'Events, newest first');
    this.rows = new Keyed(list, makeEvent);
    this.hover = new Hover(list, redraw);
  }

  update({ events }: State): void {
    setHidden(this.section.root, !events.length);
    const newest = events.at(-1);
    this.section.describe(newest ? `${formatCount(events.length)}, last: ${newest.message}` : '');
    if (!this.section.open || this.hover.over) return;
    this.rows.update([...events].reverse().map((event) => [event, event]));
  }
}
