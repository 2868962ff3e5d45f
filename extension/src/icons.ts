// The icon of psnb: three workers around a server.

import { LabIcon } from '@jupyterlab/ui-components';

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

export const psnbIcon = new LabIcon({ name: 'psnb:icon', svgstr: SVG });
