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
  const wrong = checkOf({ $ref: name })(message);
  if (wrong !== null) return refused(`${name}${wrong} is not as protocol ${VERSION} has it`);
  return message as unknown as FromSource;
}

/** Returns the path to where a value first differs; null if it fits. */
type Check = (value: unknown) => string | null;

const fits =
  (test: (value: unknown) => boolean): Check =>
  (value) =>
    test(value) ? null : '';

/** Makes the check of a schema; it is made once, as messages come many times a second. */
function checkOf(schema: Schema): Check {
  if (schema.$ref !== undefined) return CHECKS.get(schema.$ref) ?? define(schema.$ref);
  if (schema.anyOf) {
    const choices = schema.anyOf.map(checkOf);
    return fits((value) => choices.some((check) => check(value) === null));
  }
  if (schema.enum) {
    const { enum: values } = schema;
    return fits((value) => values.includes(value));
  }
  switch (schema.type) {
    case 'object':
      return checkOfMembers(schema);
    case 'array':
      return checkOfItems(schema);
    case 'integer':
      return fits(Number.isInteger);
    case 'null':
      return fits((value) => value === null);
    case 'string':
      return schema.contentEncoding ? fits(isBase64) : fits((value) => typeof value === 'string');
    case undefined:
      return fits(() => true);
    default: // number, boolean
      return fits((value) => typeof value === schema.type);
  }
}

function checkOfMembers({ properties = {}, required = [], additionalProperties }: Schema): Check {
  const members = Object.entries(properties).map(([name, schema]) => {
    return { name, needed: required.includes(name), check: checkOf(schema) };
  });
  const others = additionalProperties && checkOf(additionalProperties);
  return (value) => {
    if (!isRecord(value)) return '';
    for (const { name, needed, check } of members) {
      const member = value[name];
      const wrong = needed || member !== undefined ? check(member) : null;
      if (wrong !== null) return `.${name}${wrong}`;
    }
    if (!others) return null; // What is not known does no harm.
    for (const [name, member] of Object.entries(value)) {
      const wrong = others(member);
      if (wrong !== null) return `.${name}${wrong}`;
    }
    return null;
  };
}

function checkOfItems({ prefixItems, items = {} }: Schema): Check {
  const first = prefixItems?.map(checkOf);
  const each = checkOf(items);
  return (value) => {
    if (!Array.isArray(value) || (first && value.length !== first.length)) return '';
    for (let i = 0; i < value.length; i++) {
      const wrong = (first?.[i] ?? each)(value[i]);
      if (wrong !== null) return `[${i}]${wrong}`;
    }
    return null;
  };
}

const CHECKS = new Map<string, Check>(); // of the schemas that have names

function define(name: string): Check {
  const schemas: Record<string, Schema> = SCHEMAS;
  const check = checkOf(schemas[name] ?? {});
  CHECKS.set(name, check);
  return check;
}

function isBase64(value: unknown): boolean {
  return typeof value === 'string' && value.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(value);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
