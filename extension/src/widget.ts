// The notebook's widget, for anywidget: a coordinator's dashboard in the output of a cell.
//
// The synced trait `first` has the picture at the time of the display; all that follows are custom
// messages, {text: JSON}, both ways.

import '../style/dashboard.css';
import { Dashboard, Store } from './dashboard';
import { holdBelow } from './hold';
import { VERSION, type Command, type Hello, type Reply, type Update } from './protocol';

// What a model tells when its connection to the kernel ends; anywidget passes on all events.
const CUT = 'comm_live_update';

const CLOSED = 'closed'; // The state of a coordinator.

const GONE =
  'The connection to its kernel has ended: it was restarted or shut down. Run the cell again.';

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
        if (hasText(content)) created.accept(JSON.parse(content.text) as Update | Reply);
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
