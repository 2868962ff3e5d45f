// Which metrics stand together, and which are wanted.

/** From so many metrics on they stand in groups, and can be filtered. */
export const MANY = 7;

/** Names by what they have before their first slash: "train/" or nothing; in the order they have. */
export function grouped(names: Iterable<string>): Map<string, string[]> {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const prefix = name.slice(0, name.indexOf('/') + 1);
    const group = groups.get(prefix);
    if (group) group.push(name);
    else groups.set(prefix, [name]);
  }
  return groups;
}

const VALIDATION = 'val_'; // What begins the name of what validation gave of a metric.
const LAST = 'programs'; // Of compiled steps: it says nothing of the model.

/** The metrics that have a chart, each with what it draws: its validation, too. */
export function charted(names: Iterable<string>): Map<string, string[]> {
  const all = [...names];
  const charts = new Map<string, string[]>();
  const first = all.filter((name) => name !== LAST);
  for (const name of [...first, ...all.filter((name) => name === LAST)]) {
    const beside = name.slice(VALIDATION.length);
    if (isValidation(name) && all.includes(beside)) continue;
    const validation = VALIDATION + name;
    charts.set(name, all.includes(validation) ? [name, validation] : [name]);
  }
  return charts;
}

/** Whether a metric has a value an epoch, as validation gives it. */
export function isValidation(name: string): boolean {
  return name.startsWith(VALIDATION);
}

/** The names that have every word of a text in them, in capitals or not. */
export function matching(names: Iterable<string>, text: string): string[] {
  const words = text.toLowerCase().split(/\s+/);
  return [...names].filter((name) => words.every((word) => name.toLowerCase().includes(word)));
}
