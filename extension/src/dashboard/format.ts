// Figures as people read them.

// Made once: to make one takes longer than to use it a hundred times.
const COUNT = new Intl.NumberFormat('en-US');

/** A count, with separators of thousands. */
export function formatCount(value: number): string {
  return COUNT.format(value);
}

/** A measured value: a whole number with all its digits, others to about four. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '−∞';
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return formatCount(value);
  if (size < 1e-3 || size >= 1e9) return value.toExponential(2);
  return size >= 1000 ? formatCount(Math.round(value)) : value.toPrecision(4);
}

/** A rate or another figure whose digits do not matter: 0.25, 3.5, 120, 12.3k, 4.56M. */
export function formatRate(value: number): string {
  if (!Number.isFinite(value)) return formatNumber(value);
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  if (size >= 100) return formatCount(Math.round(value));
  if (size >= 10 || size === 0) return value.toFixed(size ? 1 : 0);
  return value.toFixed(2);
}

/** A number of bytes. */
export function formatBytes(bytes: number): string {
  let value = bytes;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (value < 1000) return `${unit === 'B' ? value : value.toPrecision(3)} ${unit}`;
    value /= 1024;
  }
  return `${value.toPrecision(3)} TiB`;
}

/** A share between 0 and 1. */
export function formatShare(share: number): string {
  return Number.isFinite(share) ? `${Math.round(100 * share)}%` : formatNumber(share);
}

/** A span of time. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return formatNumber(seconds);
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const pad = (n: number): string => String(n).padStart(2, '0');
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}:${pad(whole % 60)} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}:${pad(minutes % 60)}:${pad(whole % 60)} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How many of how many; the count alone if the total is unknown. */
export function formatOf(count: number, of: number | null): string {
  return of === null ? formatCount(count) : `${formatCount(count)} of ${formatCount(of)}`;
}

/** How many parts are done, of how many; no number before that is known. */
export function formatParts([done, of]: readonly [number, number]): string {
  return of ? `${formatOf(done, of)} part${of === 1 ? '' : 's'}` : 'begins';
}

/** The time of day of seconds since the epoch. */
export function formatClock(time: number): string {
  return new Date(1000 * time).toLocaleTimeString('en-GB');
}

/** A moment as people say it on that day or on another one. */
export function formatSince(time: number, now: number): string {
  const day = new Date(1000 * time).toLocaleDateString('en-CA');
  const clock = formatClock(time).slice(0, 5);
  return day === new Date(1000 * now).toLocaleDateString('en-CA') ? clock : `${day} ${clock}`;
}

/** A noun with its number, for nouns that take an s. */
export function plural(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/** The address if it is one of the web, to which a link may lead; empty for all else, such as "javascript:". */
export function webAddress(address: string): string {
  return /^https?:\/\//i.test(address) ? address : '';
}
