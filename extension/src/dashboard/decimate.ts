// Fewer points than a series has, that look the same.

export type Column = (number | null)[];

/** Columns as uPlot takes them: the places, then one column of values for each line. */
export interface Points {
  x: number[];
  raw: Column;
  smoothed: Column;
}

/**
 * Picks about `wanted` points: of each stretch of the series the least and the greatest value (a
 * spike stays visible), and the first and last point of all. What is not finite, or not above zero
 * where `positive`, becomes a gap.
 */
export function decimate(
  xs: Float64Array,
  values: Float64Array,
  averages: Float64Array,
  length: number,
  wanted: number,
  positive: boolean,
): Points {
  const points: Points = { x: [], raw: [], smoothed: [] };
  const drawn = (value: number | undefined): number | null =>
    value !== undefined && Number.isFinite(value) && (!positive || value > 0) ? value : null;
  const take = (i: number): void => {
    points.x.push(xs[i] ?? 0);
    points.raw.push(drawn(values[i]));
    points.smoothed.push(drawn(averages[i]));
  };
  if (length <= wanted) {
    for (let i = 0; i < length; i++) take(i);
    return points;
  }
  const buckets = Math.max(1, wanted >> 1);
  take(0);
  for (let bucket = 0; bucket < buckets; bucket++) {
    const begin = 1 + Math.floor((bucket * (length - 2)) / buckets);
    const end = 1 + Math.floor(((bucket + 1) * (length - 2)) / buckets);
    let least = -1;
    let most = -1;
    let low = Infinity;
    let high = -Infinity;
    for (let i = begin; i < end; i++) {
      const value = values[i] ?? NaN;
      if (value < low && value > -Infinity) [low, least] = [value, i];
      if (value > high && value < Infinity) [high, most] = [value, i];
    }
    if (least < 0) {
      if (end > begin) take(begin); // Nothing finite: a gap.
      continue;
    }
    take(Math.min(least, most));
    if (least !== most) take(Math.max(least, most));
  }
  take(length - 1);
  return points;
}
