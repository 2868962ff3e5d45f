"""TakenElements: what a closure has taken from its worker's iterators, for when it fails. Pure.

They are kept until the closure ends, unless they are too much, and sent to the notebook only if it
has failed: `Failure.rerun` gives them to it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psnb._src.protocol.packing import dumps
from psnb._src.utils.ownership import owned
from psnb._src.utils.text import counted
from psnb.errors import ClosureInputError, ConfigurationError, SerializationError

MOST_BYTES = 8 << 20
"""Bytes of elements that are kept of one closure; one that takes more loses all."""


MOST_ELEMENTS = 64
"""Elements that are kept, likewise."""


_KEPT_ANYWAY = 64
"""Bytes that anything counts for that does not say its size."""


class ConsumedInputs(NamedTuple):
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


@dataclass
class _TakenFrom:
    iterator: object
    elements: list[Any] = field(default_factory=list)
    count: int = 0
    finite: bool = False  # it is leased, or has ended: what is lost of it is lost to the epoch
    ended: bool = False


class TakenElements:
    """What one attempt at a closure takes; for its thread only."""

    def __init__(self) -> None:
        # By the iterators' identity, which is safe: the closure that takes from one keeps it.
        self._taken: dict[int, _TakenFrom] = {}
        self._bytes = 0
        self._too_much = False

    @property
    def counts(self) -> Counter[int]:
        """How many elements of each iterator, also if they were too much to be kept."""
        return Counter({key: each.count for key, each in self._taken.items()})

    def _of(self, iterator: object) -> _TakenFrom:
        found = self._taken.get(id(iterator))
        if found is None:
            found = self._taken[id(iterator)] = _TakenFrom(iterator)
        return found

    def add(self, iterator: object, element: Any, *, leased: bool = False) -> None:
        """Note that an element was taken; one that is leased is used once an epoch."""
        taken = self._of(iterator)
        taken.count += 1
        taken.finite |= leased
        if self._too_much:
            return
        self._bytes += size(element)
        count = sum(each.count for each in self._taken.values())
        try:
            if count <= MOST_ELEMENTS and self._bytes <= MOST_BYTES:
                taken.elements.append(owned(element))  # a step may change it in place
                return
        except ConfigurationError:  # it cannot be copied
            pass
        self._too_much = True
        for each in self._taken.values():
            each.elements.clear()

    def end(self, iterator: object) -> None:
        """Note that an iterator was found at its end."""
        taken = self._of(iterator)
        taken.finite = taken.ended = True

    def in_vain(self, before: Mapping[int, int] | None = None) -> int:
        """Return how many elements would be lost if the step ended here without an effect.

        Those of an iterator without an end, such as one of noise next to the data, are no loss.

        Parameters
        ----------
        before : Mapping, optional
            What `counts` was when the step began; by default there was nothing.
        """
        taken = sum(each.count for each in self._taken.values() if each.finite)
        return taken - sum(
            count for key, count in (before or {}).items() if self._taken[key].finite
        )

    def packed(self, number_of: Callable[[object], int | None]) -> bytes:
        """Return the pickled `ConsumedInputs` of each iterator by number, or b"" if not kept."""
        if self._too_much:
            return b""
        taken = {
            number_of(each.iterator): ConsumedInputs(each.elements, each.ended)
            for each in self._taken.values()
        }
        try:
            packed = dumps(taken, "what the closure has taken")
        except SerializationError:
            return b""
        # Elements that do not say their size have counted as small.
        return packed if len(packed) <= MOST_BYTES else b""


def taken_in_vain(count: int) -> ClosureInputError:
    """Return the error that a step has ended with StopIteration although it had taken elements.

    They would count as used, and have had no effect.
    """
    return ClosureInputError(
        f"the step had taken {counted(count, 'element')} when it found no more, and let the "
        "StopIteration through: what it had taken would count as used, without any effect. Take "
        "those behind the first with next(iterator, None), and train on what there is; or take one "
        "element a call, of a dataset in larger batches"
    )


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


class ReplayedInputs:
    """Stands for a worker's iterator where a failed closure is run again.

    Parameters
    ----------
    taken : ConsumedInputs, optional
        What there is; nothing if the closure has not come to it.
    missing : str
        Why nothing is here of what it has taken, if that is so.
    """

    def __init__(self, taken: ConsumedInputs | None, missing: str = "") -> None:
        elements, self._ended = taken or ([], False)
        self._left: Iterator[Any] = iter(elements)
        self._why = (
            f"what the closure had taken from this iterator cannot be had: {missing}"
            if missing
            else f"the closure had taken {counted(len(elements), 'element')} from this iterator "
            "when it failed, and asks for more now: those behind them are not here"
        )

    def __iter__(self) -> ReplayedInputs:
        return self

    def __next__(self) -> Any:
        for element in self._left:
            return element
        raise StopIteration if self._ended else ClosureInputError(self._why)
