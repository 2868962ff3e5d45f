// Curves as files: a table of their points, and a picture of the charts.

import type { MetricState } from './store';

/** A chart as it is on the page. */
export interface Drawn {
  readonly canvas: HTMLCanvasElement;
  /** The names of its lines, with their colours. */
  readonly lines: readonly (readonly [name: string, color: string])[];
}

/**
 * The points of metrics as lines of CSV; times are seconds since 1970. Branches are numbered from 0
 * on; where one was abandoned, there is a 1.
 */
export function csv(metrics: Iterable<MetricState>): string {
  const rows = ['metric,step,time,value,smoothed,branch,abandoned'];
  for (const { name, series } of metrics) {
    const quoted = /[",\r\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name;
    const columns = [series.steps, series.times, series.values, series.averages];
    for (const { from, to, branch, abandoned } of series.parts()) {
      for (let i = from; i < to; i++) {
        const values = columns.map((column) => String(column[i]));
        rows.push([quoted, ...values, branch, Number(abandoned)].join());
      }
    }
  }
  return rows.join('\n') + '\n';
}

const LINE = 18;
const GAP = 10;

/** The charts below each other, each under the names of its lines, as a PNG. */
export function picture(charts: readonly Drawn[], background: string, font: string): Promise<Blob | null> {
  const scale = devicePixelRatio;
  const [line, gap] = [LINE * scale, GAP * scale];
  const all = document.createElement('canvas');
  all.width = Math.max(1, ...charts.map(({ canvas }) => canvas.width)) + 2 * gap;
  all.height = charts.reduce((sum, { canvas }) => sum + canvas.height + line + gap, gap);
  const context = all.getContext('2d');
  if (!context) return Promise.resolve(null);
  context.fillStyle = background;
  context.fillRect(0, 0, all.width, all.height);
  context.font = font.replace(/[\d.]+px/, (size) => `${parseFloat(size) * scale}px`);
  context.textBaseline = 'middle';
  let y = gap;
  for (const { canvas, lines } of charts) {
    let x = gap;
    for (const [name, color] of lines) {
      context.fillStyle = color;
      context.fillText(name, x, y + line / 2);
      x += context.measureText(name).width + 2 * gap;
    }
    context.drawImage(canvas, gap, y + line);
    y += canvas.height + line + gap;
  }
  return new Promise((done) => {
    all.toBlob(done, 'image/png');
  });
}

/** Has the browser save a file. */
export function save(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement('a');
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  // Some browsers begin to read it only after this.
  setTimeout(() => {
    URL.revokeObjectURL(address);
  }, 10_000);
}
