// The axes of charts: the one along them, which charts beside each other share; the range of values,
// which outliers do not set; and what ticks say. No page is needed for it.

import type { EpochMark } from '../protocol';
import { formatCount, formatDuration } from './format';
import type { MetricState } from './store';

/** The axis along charts beside each other, by steps or by time. */
export interface Along {
  /** The place from which it counts: the first time, or step 0. */
  readonly zero: number;
  readonly from: number;
  readonly to: number;
  readonly epochs: readonly { readonly epoch: number; readonly place: number }[];
  /** The places where parameters went back. */
  readonly rewinds: readonly number[];
}

/** The axis of all these metrics. */
export function sharedAxis(
  metrics: Iterable<MetricState>,
  epochs: readonly EpochMark[],
  byTime: boolean,
): Along {
  const begins = epochs.map(({ epoch, step, time }) => ({ epoch, place: byTime ? time : step }));
  const back = new Set<number>();
  const ends = begins.map(({ place }) => place);
  for (const { series } of metrics) {
    for (const { step, time } of series.rewinds) back.add(byTime ? time : step);
    const places = byTime ? series.times : series.steps;
    if (series.length) ends.push(places[0] ?? 0, places[series.length - 1] ?? 0);
  }
  ends.push(...back);
  const from = ends.length ? Math.min(...ends) : 0;
  const to = ends.length ? Math.max(...ends) : 0;
  const zero = byTime ? from : 0;
  return {
    zero,
    from: from - zero,
    to: to - zero,
    epochs: begins.map(({ epoch, place }) => ({ epoch, place: place - zero })),
    rewinds: [...back].sort((a, b) => a - b).map((place) => place - zero),
  };
}

/** A line of a chart: places in their order, values, and whether they are means over the epoch so far. */
export interface Line {
  readonly x: readonly number[];
  readonly values: readonly (number | null)[];
  readonly means: boolean;
}

const FEW = 20; // Values of a line up to which all are shown, as of one an epoch.
const QUANTILES = [0.05, 0.95] as const;
const REACH = 1.5; // How far beyond the quantiles values are shown, in distances between them.
const UNSETTLED = 0.1; // The part of an epoch in which a mean over it is of few examples.

/**
 * The least and the greatest value that a chart shows; null if there is none. Outliers are beyond it.
 * psnb/_src/monitor/charts/value_range.py does the same for figures and saved notebooks.
 */
export function valueRange(
  lines: readonly Line[],
  epochs: readonly number[],
): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines) {
    const values = settled(line, epochs);
    const [least, most] = fences(values);
    for (const value of values) {
      if (value < least || value > most) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : null;
}

/** Between what values are no outliers. */
function fences(values: number[]): [number, number] {
  if (values.length <= FEW) return [-Infinity, Infinity];
  values.sort((a, b) => a - b);
  const [low, high] = QUANTILES.map((share) => {
    const place = share * (values.length - 1);
    const below = values[Math.floor(place)] ?? NaN;
    return below + (place % 1) * ((values[Math.ceil(place)] ?? NaN) - below);
  }) as [number, number];
  const reach = REACH * (high - low);
  // Else it is a constant with exceptions, which are all that there is to see.
  return reach > 0 ? [low - reach, high + reach] : [-Infinity, Infinity];
}

/** The values that may set the range: a mean over the epoch jumps in its first batches. */
function settled({ x, values, means }: Line, epochs: readonly number[]): number[] {
  const all = values.filter((value) => value !== null);
  if (!means) return all;
  let epoch = -1;
  const rest = values.filter((value, i): value is number => {
    const place = x[i] ?? 0;
    while ((epochs[epoch + 1] ?? Infinity) <= place) epoch++;
    if (value === null || epoch < 0) return value !== null;
    const begin = epochs[epoch] ?? 0;
    const end = epochs[epoch + 1] ?? Math.max(begin, x.at(-1) ?? 0);
    return place - begin > UNSETTLED * (end - begin);
  });
  return rest.length ? rest : all;
}

// Steps between ticks: 1, 2 and 5 times each power of ten.
const steps = (first: number, last: number): number[] =>
  Array.from({ length: last - first + 1 }, (_, i) => first + i).flatMap((power) =>
    [1, 2, 5].map((digit) => Number(`${digit}e${power}`)),
  );

/** Steps between ticks of whole numbers. */
export const WHOLE_STEPS = steps(0, 14);

/** Steps between ticks of seconds. */
export const TIME_STEPS = [
  ...steps(-3, 0),
  ...[10, 15, 30, 60, 120, 300, 600, 900, 1800],
  ...[1, 2, 4, 6, 12, 24, 48, 120, 240, 480].map((hours) => 3600 * hours),
];

const FLAT = 1e-9; // A smaller share of a value is an error of rounding.
const MARGIN = 0.1; // of a constant, above and below it

/** The range in whose middle a constant is drawn; null if the values differ. */
export function rangeOfConstant(low: number, high: number, whole: boolean): [number, number] | null {
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low > FLAT * size) return null;
  const margin = whole ? Math.max(1, Math.round(MARGIN * size)) : MARGIN * size || 1;
  return [low - margin, low + margin];
}

/** What ticks say that lie a step apart: all have the decimals that the step needs. */
export function formatTicks(ticks: readonly number[], step: number): string[] {
  const size = Math.max(...ticks.map(Math.abs));
  if (size >= 1e9 || step < 1e-5) return ticks.map(formatExponential);
  let decimals = 0;
  while (Math.abs(step - Number(step.toFixed(decimals))) > 1e-3 * step) decimals++;
  const format = new Intl.NumberFormat('en-US', {
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals,
  });
  return ticks.map((tick) => format.format(tick + 0)); // Not "-0".
}

/** What ticks of a logarithmic axis say; those that are null are left out. */
export function formatLogTicks(ticks: readonly (number | null)[]): string[] {
  return ticks.map((tick) => {
    if (tick === null) return '';
    return tick < 1e-3 || tick >= 1e9 ? formatExponential(tick) : formatCount(tick);
  });
}

/** The label of a tick, in seconds. */
export function formatTimeTick(seconds: number): string {
  return seconds < 60 ? `${Number(seconds.toPrecision(3))} s` : formatDuration(seconds);
}

/**
 * How wide an axis must be for its labels, by the pixels that a text takes. It is a multiple of
 * ten, so that one digit more or less moves nothing.
 */
export function axisWidth(labels: readonly string[], measure: (text: string) => number): number {
  const widest = Math.max(0, ...labels.map(measure));
  return Math.max(40, 10 * Math.ceil((widest + 12) / 10));
}

function formatExponential(value: number): string {
  return value === 0 ? '0' : Number(value.toPrecision(6)).toExponential().replace('e+', 'e');
}
