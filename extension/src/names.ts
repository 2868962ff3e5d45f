// Names that the parts share.

export namespace CommandIDs {
  export const openPanel = 'psnb:open-panel';
  export const openDashboard = 'psnb:open-dashboard';
  export const attach = 'psnb:attach';
  export const detach = 'psnb:detach';
  export const pauseAll = 'psnb:pause-all';
}

export const CATEGORY = 'psnb';
