import assert from 'node:assert/strict';
import { test } from 'node:test';
import type uPlot from 'uplot';
import { drawEpochs } from '../src/dashboard/marks';

/** What is written above a chart of 300 pixels, whose letters have 6 each, and where; 0 is a rewind. */
function written(...epochs: [epoch: number, place: number][]): [string, number][] {
  const found: [string, number][] = [];
  const ignore = (): void => undefined;
  const ctx = {
    save: ignore,
    restore: ignore,
    setLineDash: ignore,
    beginPath: ignore,
    moveTo: ignore,
    lineTo: ignore,
    stroke: ignore,
    measureText: (text: string) => ({ width: 6 * text.length }),
    fillText: (text: string, x: number) => found.push([text, x]),
  };
  const bbox = { left: 0, top: 20, width: 300, height: 100 };
  const chart = { ctx, bbox, valToPos: (place: number) => place } as unknown as uPlot;
  Object.assign(globalThis, { devicePixelRatio: 1 });
  const marks = {
    epochs: epochs.filter(([epoch]) => epoch).map(([epoch, place]) => ({ epoch, place })),
    rewinds: epochs.filter(([epoch]) => !epoch).map(([, place]) => place),
  };
  drawEpochs(chart, marks, 'black', '11px sans-serif');
  return found.sort((a, b) => a[1] - b[1]);
}

test('epochs are numbered where there is room', () => {
  const found = written([1, 0], [2, 50], [3, 60], [4, 298]);
  assert.deepEqual(found, [['epoch 1', 0], ['2', 50]]);
});

test('a rewind has its word also at the right edge, in the place of the number of an epoch', () => {
  const found = written([1, 0], [2, 100], [3, 270], [0, 297]);
  assert.deepEqual(found, [['epoch 1', 0], ['2', 100], ['rewound', 258]]);
});

test('a rewind is drawn beside the line of an epoch', () => {
  assert.deepEqual(written([1, 0], [2, 100], [0, 104]), [['epoch 1', 0], ['rewound', 104]]);
});
