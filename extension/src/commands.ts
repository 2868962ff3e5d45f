// The commands of psnb in JupyterLab: in the palette, the panel and the status bar.

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { addIcon, LabIcon, pauseIcon } from '@jupyterlab/ui-components';

import type { Hub } from './hub';
import type { CommandReply, Source } from './protocol';

export const CommandIDs = {
  openPanel: 'psnb:open-panel',
  openDashboard: 'psnb:open-dashboard',
  attach: 'psnb:attach',
  detach: 'psnb:detach',
  pauseAll: 'psnb:pause-all',
} as const;

export const CATEGORY = 'psnb';

const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 22 22">
  <g class="jp-icon3" fill="none" stroke="#616161" stroke-width="1.6">
    <path d="M11 11 11 4.6M11 11 5 16.2M11 11 17 16.2"/>
  </g>
  <g class="jp-icon3" fill="#616161">
    <rect x="7.7" y="8" width="6.6" height="6.2" rx="1.4"/>
    <circle cx="11" cy="3.6" r="2.3"/>
    <circle cx="4.2" cy="17" r="2.3"/>
    <circle cx="17.8" cy="17" r="2.3"/>
  </g>
</svg>`;

/** Three workers around a server. */
export const psnbIcon = new LabIcon({ name: 'psnb:icon', svgstr: SVG });

/** Shows people what went wrong, if something did. */
export async function complain(asked: Promise<CommandReply>): Promise<boolean> {
  const { error } = await asked;
  if (error) {
    warn(error);
  }
  return error === '';
}

/** Shows an error for some seconds, as it may be in the way; the bell keeps it. */
export function warn(error: string): void {
  Notification.error(`psnb: ${error}`, { autoClose: 10_000 });
}

export function addHubCommands({ commands }: JupyterFrontEnd, hub: Hub): void {
  commands.addCommand(CommandIDs.attach, {
    label: 'Attach a Scheduler or List Runs…',
    caption: 'Watch a cluster that was started from the command line, or list the runs of a folder',
    icon: addIcon,
    execute: async (args) => {
      const address = text(args['address']);
      return address ? complain(hub.attach(address)) : attachAsked(hub);
    },
  });
  commands.addCommand(CommandIDs.detach, {
    label: 'Detach a Scheduler…',
    isEnabled: () => hub.schedulers.length > 0,
    execute: async (args) => {
      const address = text(args['address']) || (await chooseScheduler(hub));
      return address ? complain(hub.detach(address)) : false;
    },
  });
  commands.addCommand(CommandIDs.pauseAll, {
    label: 'Pause All Training…',
    caption: 'Pause all coordinators on this server',
    icon: pauseIcon,
    isEnabled: () => pausable(hub).length > 0,
    execute: async () => {
      const targets = pausable(hub);
      if (targets.length === 0 || !(await confirmPause(targets, hub))) {
        return false;
      }
      const paused = await Promise.all(
        targets.map(({ coordinator }) => complain(hub.command(coordinator, 'pause'))),
      );
      return paused.every(Boolean);
    },
  });
  hub.changed.connect(() => commands.notifyCommandChanged(CommandIDs.detach));
  let could = false;
  const notify = (): void => {
    const can = pausable(hub).length > 0;
    if (can !== could) {
      could = can;
      commands.notifyCommandChanged(CommandIDs.pauseAll);
    }
  };
  hub.changed.connect(notify);
  hub.updated.connect(notify);
}

/** Add the command that opens dashboards; `make` puts a new one into the main area. */
export function addDashboardCommand<W extends { content: { coordinator: string }; id: string }>(
  { commands, shell }: JupyterFrontEnd,
  hub: Hub,
  find: (coordinator: string) => W | undefined,
  make: (coordinator: string) => W,
): void {
  commands.addCommand(CommandIDs.openDashboard, {
    label: 'Open the Dashboard of a Coordinator…',
    icon: psnbIcon,
    execute: async (args) => {
      const coordinator = text(args['coordinator']) || (await chooseCoordinator(hub));
      if (!coordinator) {
        return;
      }
      const widget = find(coordinator) ?? make(coordinator);
      shell.activateById(widget.id);
    },
  });
}

/** Coordinators that can be paused now. */
function pausable(hub: Hub): Source[] {
  return hub.sources.filter(({ coordinator, gone }) => {
    const state = hub.store(coordinator)?.state;
    return gone === '' && state && state.summary.state !== 'paused' && !state.controls.pause;
  });
}

function text(argument: unknown): string {
  return typeof argument === 'string' ? argument : '';
}

function nameOf(source: Source, hub: Hub): string {
  const name = hub.store(source.coordinator)?.state?.identity.name || source.coordinator;
  return [name, source.notebook || source.address].filter(Boolean).join(' in ');
}

async function confirmPause(targets: Source[], hub: Hub): Promise<boolean> {
  const body = `What runs now ends; nothing else starts: ${targets
    .map((source) => nameOf(source, hub))
    .join(', ')}.`;
  const { button } = await showDialog({
    title: `Pause ${targets.length === 1 ? 'one coordinator' : `${targets.length} coordinators`}?`,
    body,
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: 'Pause' })],
  });
  return button.accept;
}

/** Ask for an address until it can be attached, or people give up; what was typed stays. */
async function attachAsked(hub: Hub): Promise<boolean> {
  let address = '';
  let error = '';
  do {
    const { value } = await InputDialog.getText({
      title: 'Attach a scheduler, or list runs',
      label: error
        ? `Not attached: ${error}`
        : 'Address of the scheduler or of its dashboard, or a folder with checkpoints of runs',
      placeholder: 'host:8786, http://host:8787 or ./checkpoints',
      text: address,
      okLabel: 'Attach',
    });
    address = value?.trim() ?? '';
    error = address && (await hub.attach(address)).error;
  } while (error);
  return address !== '';
}

async function chooseScheduler(hub: Hub): Promise<string> {
  const { value } = await InputDialog.getItem({
    title: 'Detach a scheduler',
    items: hub.schedulers.map(({ address }) => address),
    okLabel: 'Detach',
  });
  return value ?? '';
}

async function chooseCoordinator(hub: Hub): Promise<string> {
  const [only, ...others] = hub.sources;
  if (!only) {
    Notification.info('psnb: there is no coordinator on this server yet.');
    return '';
  }
  if (others.length === 0) {
    return only.coordinator;
  }
  // Two may be called the same: people choose by place.
  const items = hub.sources.map((source, i) => `${i + 1}: ${nameOf(source, hub)}`);
  const { value } = await InputDialog.getItem({
    title: 'Open the dashboard of',
    items,
    okLabel: 'Open',
  });
  return hub.sources[items.indexOf(value ?? '')]?.coordinator ?? '';
}
