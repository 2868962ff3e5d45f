// Says why there is nothing to see, and what to do about it.

import { Clipboard } from '@jupyterlab/apputils';
import { copyIcon } from '@jupyterlab/ui-components';

import { Action } from './action';
import type { Blank } from './listing';

export function BlankNotice({ blank, retry }: { blank: Blank; retry: () => void }) {
  return (
    <div className="psnb-Blank" role="status">
      <div className="psnb-Blank-title">{blank.title}</div>
      <p>{blank.reason}</p>
      {blank.remedy && (
        <div className="psnb-Code">
          <pre>{blank.remedy}</pre>
          <Action icon={copyIcon} label="Copy" act={() => Clipboard.copyToSystem(blank.remedy)} />
        </div>
      )}
      {blank.retry && (
        <button className="jp-mod-styled jp-mod-accept jp-mod-minimal" onClick={retry}>
          Try now
        </button>
      )}
    </div>
  );
}
