// What is drawn into a chart beside its lines: where epochs begin, and that values are beyond its scale.

import type uPlot from 'uplot';
import type { Along } from './axes';

const LEAST = 8; // pixels between two lines, and between two words
const SIZE = 4; // of a triangle, in pixels

/** Draws a thin line where an epoch begins, and its number above; a dashed one at a rewind. */
export function drawEpochs(
  chart: uPlot,
  { epochs, rewinds }: Pick<Along, 'epochs' | 'rewinds'>,
  color: string,
  font: string,
): void {
  const ratio = devicePixelRatio;
  const { ctx } = chart;
  const { left, top, width, height } = chart.bbox;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = ratio;
  ctx.font = font.replace(/[\d.]+px/, (size) => `${parseFloat(size) * ratio}px`);
  ctx.textAlign = 'left';
  ctx.textBaseline = 'alphabetic';
  const [apart, right] = [LEAST * ratio, left + width];
  const lines: number[] = [];
  const words: [from: number, to: number][] = [];
  let named = false; // whether a number has the word "epoch" before it
  // Rewinds first: each is looked for, and epochs are many.
  const ordered = [...rewinds.map((place) => ({ epoch: 0, place })), ...epochs];
  for (const { epoch, place } of ordered) {
    const x = Math.round(chart.valToPos(place, 'x', true));
    if (lines.some((line) => Math.abs(line - x) < apart)) continue;
    lines.push(x);
    ctx.globalAlpha = 0.5;
    ctx.setLineDash(epoch ? [] : [4 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    const text = !epoch ? 'rewound' : named ? String(epoch) : `epoch ${epoch}`;
    const long = ctx.measureText(text).width;
    // A rewind is at the right edge when it is made.
    const from = epoch ? x : Math.min(x, right - long);
    const to = from + long;
    if (to > right || words.some((word) => from < word[1] + apart && word[0] < to + apart)) continue;
    words.push([from, to]);
    named ||= !!epoch;
    ctx.globalAlpha = 1;
    ctx.fillText(text, from, top - 4 * ratio);
  }
  ctx.restore();
}

/** Draws a triangle at the edge for values that are beyond it. */
export function drawBeyond(chart: uPlot): void {
  const { bbox, ctx, data, scales, series } = chart;
  // uPlot's types leave out that a scale of nothing is null.
  const { min, max } = scales['y'] as { min: number | null; max: number | null };
  const size = SIZE * devicePixelRatio;
  const [places, ...columns] = data;
  columns.forEach((column, i) => {
    const stroke = series[i + 1]?.stroke;
    const color: unknown = typeof stroke === 'function' ? stroke(chart, i + 1) : stroke;
    ctx.save();
    if (typeof color === 'string') ctx.fillStyle = color;
    let free = -Infinity;
    for (const [j, value] of column.entries()) {
      const above = typeof value === 'number' && value > (max ?? Infinity);
      const below = typeof value === 'number' && value < (min ?? -Infinity);
      const x = above || below ? chart.valToPos(places[j] ?? 0, 'x', true) : -Infinity;
      if (x < free || x === -Infinity) continue;
      free = x + size;
      const edge = above ? bbox.top : bbox.top + bbox.height;
      const inside = edge + (above ? 1.5 * size : -1.5 * size);
      ctx.beginPath();
      ctx.moveTo(x, edge);
      ctx.lineTo(x + size, inside);
      ctx.lineTo(x - size, inside);
      ctx.fill();
    }
    ctx.restore();
  });
}
