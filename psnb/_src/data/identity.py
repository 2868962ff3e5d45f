"""identity: a text that differs between different datasets, also between long lists of files. Pure.

Not looked at is what is in files and arrays, and the code of functions: of these the names count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from xxhash import xxh3_64

from psnb._src.data.dataset import Dataset
from psnb._src.data.node import Node, short
from psnb._src.excerpt import excerpt

_LENGTH = 200
"""Characters that tell people what the chain is."""


def identity(splits: Sequence[Dataset]) -> str:
    """Return a text for a dataset that is cut into splits: a checksum, and the chain in short."""
    digest = xxh3_64()
    for each in splits:
        for part in _parts(each.node):
            digest.update(part.encode() + b"\0")
    chain = " → ".join(line.strip() for line in splits[0].node.lines())
    return f"{digest.hexdigest()} ({excerpt(chain, _LENGTH)})"


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, Node) or (dataclasses.is_dataclass(value) and not callable(value)):
        yield type(value).__name__
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            if field.repr:
                yield field.name
                yield from _parts(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from _parts(tuple(value.items()))
    elif isinstance(value, tuple | list):
        yield str(len(value))
        for each in value:
            yield from _parts(each)
    else:
        yield repr(value) if isinstance(value, str | bytes) else short(value)
