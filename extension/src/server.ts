// Where the hub is on the Jupyter server, and why it might not be there.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { ConnectionOptions, Obstacle, Socket } from './connection';

const PATH = ['psnb', 'stream'];

/** How the hub of a server is reached, with the authentication of JupyterLab's own sockets. */
export function hubOf(settings: ServerConnection.ISettings): ConnectionOptions {
  return {
    open: () => {
      const url = URLExt.join(settings.wsUrl, ...PATH);
      const token =
        settings.appendToken && settings.token
          ? `?token=${encodeURIComponent(settings.token)}`
          : '';
      return new settings.WebSocket(url + token) as Socket;
    },
    why: () => why(settings),
  };
}

/** Have the hub forget a coordinator that is gone. */
export async function dismiss(
  settings: ServerConnection.ISettings,
  coordinator: string,
): Promise<void> {
  const url = URLExt.join(settings.baseUrl, 'psnb', 'coordinators', encodeURIComponent(coordinator));
  const response = await ServerConnection.makeRequest(url, { method: 'DELETE' }, settings);
  if (!response.ok) {
    throw new Error(`the Jupyter server refuses it with status ${response.status}`);
  }
}

async function why(settings: ServerConnection.ISettings): Promise<Obstacle> {
  let response: Response;
  try {
    const url = URLExt.join(settings.baseUrl, ...PATH);
    response = await ServerConnection.makeRequest(url, {}, settings);
  } catch {
    return { reason: 'The Jupyter server does not answer. Is it running?', remedy: '' };
  }
  switch (response.status) {
    case 401:
    case 403:
      return { reason: 'The Jupyter server asks for a login: reload this page.', remedy: '' };
    case 404:
      return {
        reason:
          'The server extension of psnb is not enabled. Run this line in the environment of the ' +
          'Jupyter server, then restart the server.',
        remedy: 'jupyter server extension enable psnb',
      };
    default:
      return {
        reason:
          'psnb is on the Jupyter server, but WebSockets to it do not get through ' +
          `(status ${response.status}). If there is a proxy in between, let it pass them.`,
        remedy: '',
      };
  }
}
