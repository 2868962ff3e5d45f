// A small line of the last figures, for a list.

const WIDTH = 100;
const HEIGHT = 20;

/** Points of the line through `values`, from 0 at the bottom to the largest at the top. */
export function points(values: readonly number[]): string {
  const top = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  return values
    .map((value, i) => `${(i * step).toFixed(1)},${(HEIGHT * (1 - value / top)).toFixed(1)}`)
    .join(' ');
}

export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const line = points(values);
  return (
    <svg
      className="psnb-Sparkline"
      viewBox={`0 -1 ${WIDTH} ${HEIGHT + 2}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <polygon points={`0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} />
      <polyline points={line} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}
