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

/** The names that have every word of a text in them, in capitals or not. */
export function matching(names: Iterable<string>, text: string): string[] {
  const words = text.toLowerCase().split(/\s+/);
  return [...names].filter((name) => words.every((word) => name.toLowerCase().includes(word)));
}
