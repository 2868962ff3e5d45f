// A button with an icon.

import type { LabIcon } from '@jupyterlab/ui-components';

interface ActionProps {
  icon: LabIcon;
  label: string;
  /** Why it cannot be done, or empty. */
  why?: string;
  act: () => void;
}

/** A button that says why when it cannot be used; it stays focusable so that everyone hears. */
export function Action({ icon, label, why = '', act }: ActionProps) {
  return (
    <button
      className="psnb-Action"
      title={why ? `${label}: ${why}` : label}
      aria-label={label}
      aria-disabled={why !== ''}
      onClick={(event) => {
        event.preventDefault(); // in a summary, it would fold what it heads
        if (!why) {
          act();
        }
      }}
    >
      <icon.react tag="span" stylesheet="toolbarButton" />
    </button>
  );
}
