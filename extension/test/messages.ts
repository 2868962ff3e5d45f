// Messages of a coordinator, for tests.

import { VERSION, type Source, type Update } from '../src/protocol';

export const SOURCE: Source = {
  coordinator: 'c1',
  kind: 'kernel',
  notebook: 'deep/train.ipynb',
  kernel: 'k1',
  address: '',
  gone: '',
};

export function update(changes: Partial<Update> = {}): Update {
  return {
    type: 'update',
    version: VERSION,
    coordinator: 'c1',
    sequence: 1,
    full: true,
    summary: {
      time: 1000,
      state: 'running',
      tone: 'busy',
      meaning: 'Closures run or wait.',
      elapsed: 10,
      eta: null,
      training: null,
      examples: null,
      examples_per_second: null,
      closures_per_second: 120,
      queued: 7,
      in_flight: 3,
      completed: 20,
      failed: 0,
      cancelled: 0,
      retried: 0,
      workers_lost: 0,
      servers_lost: 0,
      staleness_mean: 'nan',
      staleness_max: 0,
      phases: [0, 0, 0, 0, 0],
    },
    controls: { pause: '', resume: 'it is not paused' },
    ...changes,
  };
}
