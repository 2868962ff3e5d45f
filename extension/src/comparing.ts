// The curves of several coordinators by metric, as charts take them. No page is needed for it.

import { Series, type MetricState } from './dashboard/store';

const LAST = 'programs'; // of compiled steps: it says nothing of the model

/** One of those that are compared. */
export interface Run {
  name: string;
  metrics: ReadonlyMap<string, MetricState>;
}

/**
 * By metric, a line for each run, also for one without that metric: so a run has one colour in all
 * charts. Names that are there twice get a number. By time, all runs begin at zero.
 */
export function over(runs: readonly Run[], byTime: boolean): Map<string, MetricState[]> {
  const labels: string[] = [];
  for (const { name } of runs) {
    let label = name || 'psnb';
    for (let n = 2; labels.includes(label); n++) label = `${name || 'psnb'} (${n})`;
    labels.push(label);
  }
  const names = new Set(runs.flatMap(({ metrics }) => [...metrics.keys()]));
  names.delete(LAST);
  const begins = runs.map(({ metrics }) =>
    Math.min(...[...metrics.values()].map(({ series }) => (series.length ? (series.times[0] ?? 0) : Infinity))),
  );
  return new Map(
    [...names].map((name) => [
      name,
      runs.map(({ metrics }, i): MetricState => {
        const found = metrics.get(name);
        const label = labels[i] ?? '';
        if (!found) {
          return { name: label, count: 0, last: null, smoothed: null, series: new Series(), revision: 0 };
        }
        if (!byTime) return { ...found, name: label };
        const begin = begins[i] ?? 0;
        const times = found.series.times.map((time) => time - begin);
        const rewinds = found.series.rewinds.map(({ step, time, kept }) => {
          return { step, time: time - begin, kept: kept - begin };
        });
        const series = Object.assign(new Series(), found.series, { times, rewinds });
        return { ...found, name: label, series };
      }),
    ]),
  );
}
