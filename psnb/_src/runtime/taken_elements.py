"""TakenElements: what a closure has taken from its worker's iterators, for when it fails. Pure.

They are kept until the closure ends, unless they are too much, and sent to the notebook only if it
has failed: `Failure.rerun` gives them to it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from psnb._src.excerpt import counted
from psnb._src.runtime.packing import dumps
from psnb.errors import ClosureInputError, SerializationError

MOST_BYTES = 8 << 20
"""Bytes of elements that are kept of one closure; one that takes more loses all."""

MOST_ELEMENTS = 64
"""Elements that are kept, likewise."""

_KEPT_ANYWAY = 64
"""Bytes that anything counts for that does not say its size."""


class Taken(NamedTuple):
    """What was taken from one iterator.

    Attributes
    ----------
    elements : list
        In the order in which they were taken.
    ended : bool
        Whether the iterator was found at its end after them.
    """

    elements: list[Any]
    ended: bool


class TakenElements:
    """What one attempt at a closure takes; for its thread only."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[object, list[Any]]] = {}  # by the iterators' identity
        self._ended: set[int] = set()
        self._count = self._bytes = 0
        self._too_much = False

    def add(self, iterator: object, element: Any) -> None:
        """Note that an element was taken."""
        if self._too_much:
            return
        self._count += 1
        self._bytes += size(element)
        if self._count > MOST_ELEMENTS or self._bytes > MOST_BYTES:
            self._too_much = True
            self._taken.clear()
            return
        self._taken.setdefault(id(iterator), (iterator, []))[1].append(element)

    def end(self, iterator: object) -> None:
        """Note that an iterator was found at its end."""
        self._taken.setdefault(id(iterator), (iterator, []))
        self._ended.add(id(iterator))

    def packed(self, number_of: Callable[[object], int | None]) -> bytes:
        """Return the pickled `Taken` of each iterator by its number; empty if they are not kept."""
        if self._too_much:
            return b""
        taken = {
            number_of(iterator): Taken(elements, key in self._ended)
            for key, (iterator, elements) in self._taken.items()
        }
        try:
            packed = dumps(taken, "what the closure has taken")
        except SerializationError:
            return b""
        # Elements that do not say their size have counted as small.
        return packed if len(packed) <= MOST_BYTES else b""


def size(element: Any) -> int:
    """Return about how many bytes an element takes."""
    if isinstance(element, dict):
        return sum(map(size, element.values()), _KEPT_ANYWAY)
    if isinstance(element, list | tuple):
        return sum(map(size, element), _KEPT_ANYWAY)
    if isinstance(element, str | bytes):
        return len(element)
    nbytes = getattr(element, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else _KEPT_ANYWAY


class TakenAgain:
    """Stands for a worker's iterator where a failed closure is run again.

    Parameters
    ----------
    taken : Taken, optional
        What there is; nothing if the closure has not come to it.
    """

    def __init__(self, taken: Taken | None) -> None:
        taken = taken or Taken([], ended=False)
        self._left: Iterator[Any] = iter(taken.elements)
        self._count, self._ended = len(taken.elements), taken.ended

    def __iter__(self) -> TakenAgain:
        return self

    def __next__(self) -> Any:
        for element in self._left:
            return element
        if self._ended:
            raise StopIteration
        raise ClosureInputError(
            f"the closure had taken {counted(self._count, 'element')} from this iterator when it "
            "failed, and asks for more now: those behind them are not here"
        )


class NothingKept:
    """Stands likewise for an iterator of which no elements are here.

    Parameters
    ----------
    why : str
        Why not.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def __iter__(self) -> NothingKept:
        return self

    def __next__(self) -> Any:
        raise ClosureInputError(
            f"what the closure had taken from this iterator cannot be had: {self._why}"
        )
