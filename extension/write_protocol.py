"""Writes ``src/protocol.ts``: the messages of ``psnb/_src/monitor/protocol.py`` in TypeScript.

Run ``python -m extension.write_protocol`` in the repository's root after each change of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from psnb._src.monitor import protocol, states

FILE = Path(__file__).parent / "src" / "protocol.ts"

FROM_SOURCE = (protocol.Update, protocol.CommandReply, protocol.Sources)
FROM_VIEW = (protocol.Hello, protocol.Command, protocol.Attach)

ALIASES = {
    json.dumps(msgspec.json.schema(kind)): name
    for name, kind in {
        "Packed": protocol.Packed,
        "Num": protocol.Number,
        "Tone": states.Tone,
        "CommandName": protocol.CommandName,
    }.items()
}
"""By their schemas, which do not have them: names of types. TypeScript has another ``Number``."""

HEADER = f"""\
// The wire contract between coordinators and their views, written by
// `python -m extension.write_protocol` from psnb/_src/monitor/protocol.py, which explains it.

export const VERSION = {protocol.VERSION};
"""


def contract() -> str:
    """Return the text of the file."""
    _, types = msgspec.json.schema_components([*FROM_SOURCE, *FROM_VIEW], ref_template="{name}")
    _, heard = msgspec.json.schema_components(FROM_SOURCE, ref_template="{name}")
    schemas = "".join(f"  {name}: {json.dumps(_bare(heard[name]))},\n" for name in heard)
    return "\n".join(
        [
            HEADER,
            *(f"export type {ALIASES[it]} = {_type(json.loads(it))};\n" for it in ALIASES),
            *(_interface(name, schema) for name, schema in types.items()),
            "/** What a view hears: of the kernel through the widget's comm, or of the hub. */\n"
            f"export type FromSource = {' | '.join(kind.__name__ for kind in FROM_SOURCE)};\n",
            "/** What a view says. */\n"
            f"export type FromView = {' | '.join(kind.__name__ for kind in FROM_VIEW)};\n",
            "/** JSON schemas of all that a view hears; `$ref` is a name of these. */\n"
            f"export const SCHEMAS = {{\n{schemas}}};\n",
        ]
    )


def _interface(name: str, schema: dict[str, Any]) -> str:
    lines = [f"/** {schema['description'].splitlines()[0]} */", f"export interface {name} {{"]
    for member in get_type_hints(getattr(protocol, name)):  # in the order of the source
        optional = "" if member in schema["required"] else "?"
        lines.append(f"  {member}{optional}: {_named(schema['properties'][member])};")
    return "\n".join([*lines, "}\n"])


def _named(schema: dict[str, Any]) -> str:
    return ALIASES.get(json.dumps(schema)) or _type(schema)


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": name}:
            return str(name)
        case {"anyOf": [*others, {"type": "null"}]}:
            rest = others[0] if len(others) == 1 else {"anyOf": others}
            return f"{_named(rest)} | null"
        case {"anyOf": choices}:
            return " | ".join(_named(choice) for choice in choices)
        case {"enum": values}:
            return " | ".join(f"'{value}'" for value in values)
        case {"prefixItems": items}:
            return f"[{', '.join(_named(item) for item in items)}]"
        case {"items": items}:
            return f"{_named(items)}[]"
        case {"additionalProperties": values}:
            return f"Record<string, {_named(values)}>"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": "integer"}:
            return "number"
        case {"type": kind}:
            return str(kind)
    raise TypeError(f"{schema} has no type in TypeScript yet")


def _bare(schema: Any) -> Any:
    """Return a schema without what no check needs."""
    match schema:
        case dict():
            return {
                key: _bare(value)
                for key, value in schema.items()
                if key not in ("title", "description", "minItems", "maxItems")
                and value is not False  # no items after the prefix: a tuple has that length
            }
        case list():
            return [_bare(value) for value in schema]
    return schema


if __name__ == "__main__":
    FILE.write_text(contract())
