"""What each node of a chain is, and what iterates over one."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from psnb._src.data.block import BLOCK, Block, block_spec
from psnb._src.data.iteration_context import Context
from psnb._src.data.ragged import Ragged
from psnb._src.data.spec import ArraySpec, Spec
from psnb.errors import DatasetError

State = Any
"""Of JSON's types. Small: data that can be read again are not in it."""

INFINITE = -1
UNKNOWN = -2


class NodeIterator(ABC):
    """Goes once through what a node describes. One thread at a time."""

    @abstractmethod
    def next_block(self, limit: int) -> Block | None:
        """Return the next elements, at least one and at most ``limit``; None at the end.

        Raises
        ------
        DatasetError
            If the very next element cannot be had. It is left out then: the next call goes on
            after it. Elements before it were returned by earlier calls.
        """

    @abstractmethod
    def state(self) -> State:
        """Return what `Node.iterate` needs to go on after what was returned so far."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End threads and close files; idempotent."""


class Indexed(ABC):
    """Elements that can be had in any order.

    Attributes
    ----------
    count : int
        How many.
    """

    count: int

    @abstractmethod
    def gather(self, indices: np.ndarray) -> Block:
        """Return elements by number, int64 ``(m,)``, each in ``[0, count)``."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Block:
        """Return a run of elements, as views where possible."""


class Node(ABC):
    """A part of a dataset's description: immutable; a frozen dataclass whose fields say it all."""

    name: ClassVar[str]
    """What the method of `Dataset` that makes it is called."""

    @abstractmethod
    def iterate(self, context: Context, state: State = None) -> NodeIterator:
        """Begin at the first element, or where a state was taken."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads from."""
        found: list[Node] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Node)]
        return tuple(found)

    def indexed(self) -> Indexed | None:
        """Return the elements by number, if they can be had so; it may open files."""
        return None

    def spec(self, run: bool) -> Spec:
        """Return what its elements are; None if that cannot be said.

        Parameters
        ----------
        run : bool
            Whether the first element may be made to find out.
        """
        return self.inputs[0].spec(run)

    def cardinality(self) -> int:
        """Return how many elements there are, `INFINITE` or `UNKNOWN`."""
        return UNKNOWN

    @property
    def ahead(self) -> int:
        """How many elements at once nobody minds: 1 where user code would notice."""
        return min((each.ahead for each in self.inputs), default=BLOCK)

    def parameters(self) -> list[str]:
        """Return its parameters as ``name=value``, those that are not at their defaults."""
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not field.repr or isinstance(value, Node) or _holds_nodes(value):
                continue
            if field.default is dataclasses.MISSING or not _same(value, field.default):
                text = short(value)
                shown.append(text if callable(value) else f"{field.name}={text}")
        return shown

    def label(self) -> str:
        """Return what it is called in messages and drawings."""
        return f"{self.name}({', '.join(self.parameters())})"

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the chain from its sources on, a node a line, inputs further in."""
        inputs = self.inputs
        for each in inputs:
            yield from each.lines(depth + (len(inputs) > 1))
        yield "  " * depth + self.label()

    def fingerprint(self) -> str:
        """Return a short text that differs between different chains."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()[:16]

    def error(self, position: int, problem: str, place: str = "") -> DatasetError:
        """Return the error that something is wrong with an element, by its number from 0."""
        return DatasetError(f"{self.label()}, element {position}{place}: {problem}")


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, Node) for item in value)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def short(value: Any) -> str:
    """Return a value as one short line that is the same in every process."""
    if isinstance(value, Block):
        return short(block_spec(value)) + f" x {value.count}"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, Ragged):
        return f"<ragged {value.dtype} {value.shape}>"
    if isinstance(value, (ArraySpec, str, bytes, int, float, type(None), np.generic)):
        text = repr(value)
    elif isinstance(value, tuple):
        text = "(" + ", ".join(short(item) for item in value[:4])
        text += f", … {len(value)} in all)" if len(value) > 4 else ")"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {short(item)}" for key, item in value.items()) + "}"
    elif callable(value):
        # Not `repr`, which has an address in it.
        text = str(getattr(value, "__qualname__", type(value).__qualname__)).split("<locals>.")[-1]
    elif dataclasses.is_dataclass(value):
        text = repr(value)
    else:
        text = f"<{type(value).__qualname__}>"
    return text if len(text) <= 80 else text[:79] + "…"
