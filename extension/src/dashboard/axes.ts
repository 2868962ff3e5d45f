// Where the axis of a chart's values begins and ends, and what the ticks of axes say.

import { formatCount, formatDuration } from './format';

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

/** What a tick at so many seconds says. */
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
