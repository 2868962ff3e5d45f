// The panel in the left sidebar: coordinators, and below them attached schedulers.

import { CommandToolbarButton, PanelWithToolbar, SidePanel } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Widget } from '@lumino/widgets';

import { CoordinatorList, type CoordinatorListOptions } from './coordinatorList';
import { psnbIcon } from './icons';
import { CommandIDs } from './names';
import { SchedulerList } from './schedulerList';

export interface PanelOptions extends CoordinatorListOptions {
  commands: CommandRegistry;
  detach: (address: string) => void;
}

export class Panel extends SidePanel {
  constructor({ commands, detach, ...options }: PanelOptions) {
    super();
    this.id = 'psnb-panel';
    this.addClass('psnb-Panel');
    this.title.icon = psnbIcon;
    this.title.caption = 'psnb: training on this server';
    this.section('Coordinators', new CoordinatorList(options), commands, CommandIDs.pauseAll);
    this.section('Schedulers', new SchedulerList(options.hub, detach), commands, CommandIDs.attach);
  }

  private section(label: string, content: Widget, commands: CommandRegistry, id: string): void {
    const section = new PanelWithToolbar();
    section.addClass('psnb-Section');
    section.title.label = label;
    section.toolbar.addItem(id, new CommandToolbarButton({ commands, id, label: '' }));
    section.addWidget(content);
    this.addWidget(section);
  }
}
