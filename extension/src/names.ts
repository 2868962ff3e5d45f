// Names that the parts share.

export const CommandIDs = {
  openPanel: 'psnb:open-panel',
  openDashboard: 'psnb:open-dashboard',
  attach: 'psnb:attach',
  detach: 'psnb:detach',
  pauseAll: 'psnb:pause-all',
} as const;

export const CATEGORY = 'psnb';
