// Messages from outside: each is checked against the contract before anything uses it.

import { SCHEMAS, VERSION, type FromSource } from './protocol';

/** A message that does not fit, as it comes from another version of psnb. */
export interface Refused {
  type: 'refused';
  reason: string;
}

/** What is used of JSON schema. */
interface Schema {
  $ref?: string;
  anyOf?: Schema[];
  enum?: unknown[];
  type?: string;
  contentEncoding?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: Schema;
  prefixItems?: Schema[];
  items?: Schema;
}

const NAMES = new Map<unknown, string>([
  ['update', 'Update'],
  ['reply', 'CommandReply'],
  ['sources', 'Sources'],
]);

/** Decodes a message of a coordinator or the hub. */
export function decode(text: string): FromSource | Refused {
  const refused = (reason: string): Refused => ({ type: 'refused', reason });
  let message: unknown;
  try {
    message = JSON.parse(text);
  } catch {
    return refused('a message is not JSON');
  }
  if (!isRecord(message)) return refused('a message has no members');
  const { type, version } = message;
  if (version !== VERSION) return refused(`protocol ${VERSION} here, ${String(version)} there`);
  const name = NAMES.get(type);
  if (!name) return refused(`there are no messages of type ${String(type)} here`);
  const wrong = misfit(message, { $ref: name }, name);
  return wrong ? refused(`${wrong} is not as protocol ${VERSION} has it`) : (message as unknown as FromSource);
}

/** Returns where a value first differs from a schema, as a path below `path`; null if it fits. */
export function misfit(value: unknown, schema: Schema, path: string): string | null {
  const schemas: Record<string, Schema> = SCHEMAS;
  if (schema.$ref !== undefined) return misfit(value, schemas[schema.$ref] ?? {}, path);
  if (schema.anyOf) {
    return schema.anyOf.some((choice) => misfit(value, choice, path) === null) ? null : path;
  }
  if (schema.enum) return schema.enum.includes(value) ? null : path;
  switch (schema.type) {
    case 'object':
      return isRecord(value) ? misfitOfMembers(value, schema, path) : path;
    case 'array':
      return Array.isArray(value) ? misfitOfItems(value, schema, path) : path;
    case 'integer':
      return Number.isInteger(value) ? null : path;
    case 'null':
      return value === null ? null : path;
    case 'string':
      return typeof value === 'string' && (!schema.contentEncoding || isBase64(value)) ? null : path;
    default: // number, boolean
      return typeof value === schema.type ? null : path;
  }
}

function misfitOfMembers(
  value: Record<string, unknown>,
  { properties = {}, required = [], additionalProperties }: Schema,
  path: string,
): string | null {
  const missing = required.find((name) => !(name in value));
  if (missing !== undefined) return `${path}.${missing}`;
  for (const [name, member] of Object.entries(value)) {
    const schema = Object.hasOwn(properties, name) ? properties[name] : additionalProperties;
    const wrong = schema ? misfit(member, schema, `${path}.${name}`) : null;
    if (wrong !== null) return wrong;
  }
  return null;
}

function misfitOfItems(value: unknown[], { prefixItems, items }: Schema, path: string): string | null {
  if (prefixItems && value.length !== prefixItems.length) return path;
  for (const [i, item] of value.entries()) {
    const schema = prefixItems?.[i] ?? items;
    const wrong = schema ? misfit(item, schema, `${path}[${i}]`) : null;
    if (wrong !== null) return wrong;
  }
  return null;
}

function isBase64(text: string): boolean {
  return text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
