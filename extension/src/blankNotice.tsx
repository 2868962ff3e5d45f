// Says why there is nothing to see, and what to do about it.

import type { Blank } from './listing';

export function BlankNotice({ blank, retry }: { blank: Blank; retry: () => void }) {
  return (
    <div className="psnb-Blank" role="status">
      <div className="psnb-Blank-title">{blank.title}</div>
      <p>{blank.reason}</p>
      {blank.remedy && <pre>{blank.remedy}</pre>}
      {blank.retry && (
        <button className="jp-mod-styled jp-mod-accept jp-mod-minimal" onClick={retry}>
          Try now
        </button>
      )}
    </div>
  );
}
