// The notebook's widget, for anywidget: a coordinator's dashboard in the output of a cell.
//
// The synced trait `first` has the picture at the time of the display; all that follows are custom
// messages, {text: JSON}, both ways.

import '../style/dashboard.css';
import { Dashboard } from './dashboard/dashboard';
import { Store } from './dashboard/store';
import { decode } from './messages';
import { VERSION, type Command, type Hello } from './protocol';

// The event of a model whose connection to the kernel ends; anywidget passes on all events.
const CUT = 'comm_live_update';

const CLOSED = 'closed'; // The state of a coordinator.

const HELD = 5_000; // Milliseconds in which the kernel puts a summary in the place of the dashboard.

const GONE =
  'The connection to its kernel has ended: it was restarted or shut down. Run the cell again.';

const mismatch = (reason: string): string =>
  `This page and the coordinator run different versions of psnb (${reason}). ` +
  'Restart the kernel and reload the page.';

/** What anywidget gives of the model. */
interface Model {
  get(name: 'first'): unknown;
  send(content: { text: string }): void;
  on(name: 'msg:custom', callback: (content: unknown) => void): void;
  on(name: typeof CUT, callback: () => void): void;
  off(name: 'msg:custom', callback: (content: unknown) => void): void;
  off(name: typeof CUT, callback: () => void): void;
}

function hasText(content: unknown): content is { text: string } {
  return (
    typeof content === 'object' &&
    content !== null &&
    'text' in content &&
    typeof content.text === 'string'
  );
}

// anywidget calls this once for each model, whose views share the store.
export default function (): object {
  let store: Store | null = null;

  const say = (model: Model, message: Hello | Command): void => {
    model.send({ text: JSON.stringify(message) });
  };

  return {
    initialize({ model }: { model: Model }): () => void {
      const hello = (): void => {
        say(model, { type: 'hello', version: VERSION });
      };
      const created = new Store(hello);
      store = created;
      const hear = (content: unknown): void => {
        if (!hasText(content)) return;
        const message = decode(content.text);
        if (message.type === 'refused') created.fail(mismatch(message.reason));
        else if (message.type !== 'sources') created.accept(message);
      };
      const first = model.get('first');
      if (first) hear({ text: first });
      const end = (): void => {
        created.end(GONE);
      };
      model.on('msg:custom', hear);
      model.on(CUT, end);
      hello();
      return () => {
        model.off('msg:custom', hear);
        model.off(CUT, end);
      };
    },

    render({ model, el }: { model: Model; el: HTMLElement }): (() => void) | undefined {
      if (!store) return undefined;
      const dashboard = new Dashboard(el, store, (command) => {
        say(model, command);
      });
      const shown = store;
      const ignore = shown.listen({
        changed: () => {
          if (shown.state?.summary.state !== CLOSED) return;
          ignore();
          holdBelow(el); // The kernel puts a summary in the place of this.
        },
      });
      return () => {
        ignore();
        dashboard.dispose();
      };
    },
  };
}

/**
 * Holds in place what is below a cell whose output becomes shorter. For some seconds it scrolls by
 * as much as the cell grows or shrinks, if the cell's end is in view or above: what people read below
 * does not jump. Near the beginning of the page it cannot scroll that far: the cell keeps the rest as
 * empty space until it is out of view. Browsers scroll by themselves, but leave that rest.
 */
function holdBelow(element: Element): void {
  const cell = element.closest<HTMLElement>('.jp-Cell');
  const scroller = cell && scrollerOf(cell);
  if (!cell || !scroller) return;
  let { height } = cell.getBoundingClientRect();
  const sizes = new ResizeObserver(() => {
    const box = cell.getBoundingClientRect();
    const grown = box.height - height;
    height = box.height;
    if (box.bottom - grown >= scroller.getBoundingClientRect().bottom) return;
    const missing = -(scroller.scrollTop + grown);
    if (missing > 0) cell.style.minHeight = `${(height += missing)}px`;
    scroller.scrollTop += grown;
  });
  sizes.observe(cell);
  const { overflowAnchor } = scroller.style;
  scroller.style.overflowAnchor = 'none'; // Not both.
  setTimeout(() => {
    sizes.disconnect();
    scroller.style.overflowAnchor = overflowAnchor;
    releaseOutOfView(cell);
  }, HELD);
}

function releaseOutOfView(cell: HTMLElement): void {
  const views = new IntersectionObserver((entries) => {
    if (entries.at(-1)?.isIntersecting) return;
    views.disconnect();
    cell.style.minHeight = '';
  });
  views.observe(cell);
}

function scrollerOf(element: HTMLElement): HTMLElement | null {
  let found = element.parentElement;
  while (found && !/auto|scroll/.test(getComputedStyle(found).overflowY)) found = found.parentElement;
  return found;
}
