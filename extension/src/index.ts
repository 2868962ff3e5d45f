// The plugins of JupyterLab and Jupyter Notebook 7: panel, dashboards, status item, hub, preferences.
//
// Notebook 7 has no status bar, and the main area of its pages holds one widget, the notebook.

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin,
} from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker, type MainAreaWidget } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { Token } from '@lumino/coreutils';

import {
  addDashboardCommand,
  addHubCommands,
  CATEGORY,
  CommandIDs,
  complain,
  psnbIcon,
  warn,
} from './commands';
import { Connection } from './connection';
import { makeComparison } from './comparison';
import { makeDashboard, type DashboardPanel } from './dashboardPanel';
import { Hub } from './hub';
import { Panel, Status } from './panel';
import { Preferences } from './preferences';
import { dismiss, hubOf } from './server';

const IHub = new Token<Hub>('psnb:IHub', 'The coordinators that the hub on the Jupyter server knows.');
const IPreferences = new Token<Preferences>('psnb:IPreferences', 'What people have set.');

const hub: JupyterFrontEndPlugin<Hub> = {
  id: 'psnb:hub',
  description: 'Listens to the coordinators of this server.',
  autoStart: true,
  provides: IHub,
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, palette: ICommandPalette | null) => {
    const connection = new Connection(hubOf(app.serviceManager.serverSettings));
    const model = new Hub(connection);
    addHubCommands(app, model);
    for (const command of [CommandIDs.attach, CommandIDs.detach, CommandIDs.pauseAll]) {
      palette?.addItem({ command, category: CATEGORY });
    }
    connection.connect();
    return model;
  },
};

const preferences: JupyterFrontEndPlugin<Preferences> = {
  id: 'psnb:preferences',
  description: 'How often things are redrawn, and how much of the past is shown.',
  autoStart: true,
  provides: IPreferences,
  optional: [ISettingRegistry],
  activate: async (_: JupyterFrontEnd, registry: ISettingRegistry | null) => {
    const values = new Preferences();
    if (registry) {
      values.follow(await registry.load(preferences.id));
    }
    return values;
  },
};

const dashboards: JupyterFrontEndPlugin<void> = {
  id: 'psnb:dashboards',
  description: 'Dashboards of coordinators in the main area, also after a reload.',
  autoStart: true,
  requires: [IHub],
  optional: [ICommandPalette, ILayoutRestorer, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    model: Hub,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    lab: ILabShell | null,
  ) => {
    const area = lab ? 'main' : 'right';
    const tracker = new WidgetTracker<MainAreaWidget<DashboardPanel>>({
      namespace: 'psnb-dashboards',
    });
    addDashboardCommand(
      app,
      model,
      (coordinator) => tracker.find(({ content }) => content.coordinator === coordinator),
      (coordinator) => {
        const widget = makeDashboard(coordinator, model);
        app.shell.add(widget, area);
        void tracker.add(widget);
        return widget;
      },
    );
    palette?.addItem({ command: CommandIDs.openDashboard, category: CATEGORY });
    void restorer?.restore(tracker, {
      command: CommandIDs.openDashboard,
      args: ({ content }) => ({ coordinator: content.coordinator }),
      name: ({ content }) => content.coordinator,
    });
  },
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'psnb:panel',
  description: 'The panel in the left sidebar with all coordinators of this server.',
  autoStart: true,
  requires: [IHub, IPreferences],
  optional: [ICommandPalette, ILayoutRestorer, ILabShell],
  activate: (
    { commands, shell, serviceManager }: JupyterFrontEnd,
    model: Hub,
    values: Preferences,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    lab: ILabShell | null,
  ) => {
    const kernelName = (id: string): string => {
      const kernel = [...serviceManager.kernels.running()].find((one) => one.id === id);
      const spec = serviceManager.kernelspecs.specs?.kernelspecs[kernel?.name ?? ''];
      return spec?.display_name ?? kernel?.name ?? '';
    };
    const widget = new Panel({
      hub: model,
      preferences: values,
      commands,
      kernelName,
      detach: (address) => void commands.execute(CommandIDs.detach, { address }),
      actions: {
        openDashboard: (coordinator) =>
          void commands.execute(CommandIDs.openDashboard, { coordinator }),
        compare: (coordinators) => {
          const comparison = makeComparison(coordinators, model);
          shell.add(comparison, lab ? 'main' : 'right');
          shell.activateById(comparison.id);
        },
        openNotebook: (path) => void commands.execute('docmanager:open', { path }),
        control: (coordinator, command) => void complain(model.command(coordinator, command)),
        dismiss: (coordinator) =>
          void dismiss(serviceManager.serverSettings, coordinator).catch((error: unknown) =>
            warn(String(error)),
          ),
      },
    });
    shell.add(widget, 'left', { rank: 600 });
    restorer?.add(widget, widget.id);
    commands.addCommand(CommandIDs.openPanel, {
      label: 'Open the Panel of Coordinators',
      icon: psnbIcon,
      execute: () => shell.activateById(widget.id),
    });
    palette?.addItem({ command: CommandIDs.openPanel, category: CATEGORY });
  },
};

const status: JupyterFrontEndPlugin<void> = {
  id: 'psnb:status',
  description: 'What is queued and in flight of the notebook in front, in the status bar.',
  autoStart: true,
  requires: [IHub, IPreferences, IDocumentManager],
  optional: [IStatusBar],
  activate: (
    { commands, shell }: JupyterFrontEnd,
    model: Hub,
    values: Preferences,
    documents: IDocumentManager,
    bar: IStatusBar | null,
  ) => {
    if (!bar) return;
    const item = new Status(
      model,
      shell,
      documents,
      values,
      () => void commands.execute(CommandIDs.openPanel),
    );
    bar.registerStatusItem('psnb:status', {
      item,
      align: 'left',
      rank: 10,
      isActive: () => item.isActive,
      activeStateChanged: item.activeChanged,
    });
  },
};

export default [hub, preferences, dashboards, panel, status] as JupyterFrontEndPlugin<unknown>[];
