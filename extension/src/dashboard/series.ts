// The points of one metric, in columns that grow.

import type { Metric } from '../protocol';

/** Points kept of a metric; once there are more, every second one goes. */
export const MAX_POINTS = 65_536;

const FIRST_CAPACITY = 256;

/** Decodes a packed series: little-endian, as every machine is that runs a browser. */
export function unpack(packed: string): Float64Array {
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float64Array(bytes.buffer, 0, bytes.length >> 3);
}

/** Encodes a series as `unpack` takes it. */
export function pack(values: ArrayLike<number>): string {
  const bytes = new Uint8Array(Float64Array.from(values).buffer);
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

export class Series {
  steps = new Float64Array(FIRST_CAPACITY);
  times = new Float64Array(FIRST_CAPACITY);
  values = new Float64Array(FIRST_CAPACITY);
  averages = new Float64Array(FIRST_CAPACITY);
  /** Points in the columns; what lies behind them means nothing. */
  length = 0;
  /** Points that the source has sent; more than `length` if some were missed or thinned out. */
  total = 0;
  /** Whether all values are whole numbers, as counts are; what is not finite is left aside. */
  whole = true;

  /**
   * Takes the points of a message. Those that are here already are left out; where some were
   * missed the curve goes on all the same, until a full update brings all.
   */
  append(points: Pick<Metric, 'start' | 'steps' | 'times' | 'values' | 'averages'>): void {
    if (points.start === 0) {
      this.length = this.total = 0;
      this.whole = true;
    }
    const columns = [points.steps, points.times, points.values, points.averages].map(unpack);
    const [steps, times, values, averages] = columns;
    if (!steps || !times || !values || !averages) return;
    const count = Math.min(...columns.map((column) => column.length));
    const known = Math.min(count, Math.max(0, this.total - points.start));
    this.reserve(this.length + count - known);
    this.steps.set(steps.subarray(known, count), this.length);
    this.times.set(times.subarray(known, count), this.length);
    this.values.set(values.subarray(known, count), this.length);
    this.whole &&= !values.some((value) => Number.isFinite(value) && !Number.isInteger(value));
    this.averages.set(averages.subarray(known, count), this.length);
    this.length += count - known;
    this.total = Math.max(this.total, points.start + count);
    while (this.length > MAX_POINTS) this.thin();
  }

  /** The index of the last point whose place, by step or by time, is not after `place`; or -1. */
  at(place: number, byTime: boolean): number {
    const places = byTime ? this.times : this.steps;
    let begin = 0;
    let end = this.length;
    while (begin < end) {
      const middle = (begin + end) >> 1;
      if ((places[middle] ?? Infinity) <= place) begin = middle + 1;
      else end = middle;
    }
    return begin - 1;
  }

  private reserve(length: number): void {
    if (length <= this.steps.length) return;
    const capacity = Math.max(length, 2 * this.steps.length);
    const grown = (column: Float64Array): Float64Array<ArrayBuffer> => {
      const copy = new Float64Array(capacity);
      copy.set(column.subarray(0, this.length));
      return copy;
    };
    this.steps = grown(this.steps);
    this.times = grown(this.times);
    this.values = grown(this.values);
    this.averages = grown(this.averages);
  }

  private thin(): void {
    const kept = this.length >> 1;
    for (const column of [this.steps, this.times, this.values, this.averages]) {
      for (let i = 0; i < kept; i++) column[i] = column[2 * i + 1] ?? NaN;
    }
    this.length = kept;
  }
}
