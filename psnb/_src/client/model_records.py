"""ModelRecords: which models were placed on a strategy, and what of each is in which parameter.

The parameters of a model lie one after another in few variables, whose values do not show to what
they belong. A record does, and goes wherever the values go: to the scheduler, for `attach`, and
into checkpoints. It is made once a model was placed completely: a model that an interrupt has left
unfinished has none.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from psnb._src.utils.sealed_json import require, typed

Arrays = tuple[tuple[str, tuple[Annotated[int, Meta(ge=0, lt=1 << 53)], ...]], ...]
"""Names and shapes of the arrays in a variable, in the order in which they lie there."""


class ModelRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """What of a model is in which parameter of its strategy.

    Attributes
    ----------
    arrays : mapping of str to mapping
        For each kind of arrays (trained ones, moved ones) the contents of the variables, by their
        names.
    tables : mapping of str to str
        The names of its tables, by the model's names for them.
    local : mapping of str to str
        By name an identification of values that are not on servers, such as frozen embeddings.
    scratch : mapping of str to str
        By purpose the name of a variable whose value is not needed later, such as metrics.
    """

    arrays: Mapping[str, Mapping[str, Arrays]]
    tables: Mapping[str, str]
    local: Mapping[str, str] = {}
    scratch: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        for variables in self.arrays.values():
            names = [name for arrays in variables.values() for name, _ in arrays]
            require(len({*names}) == len(names), "two of its arrays have one name")

    @property
    def variables(self) -> dict[str, Arrays]:
        """What its variables have, of all kinds."""
        return {name: each for kind in self.arrays.values() for name, each in kind.items()}

    def packed(self) -> bytes:
        """Return it as `unpacked` takes it."""
        return msgspec.json.encode(self)

    @classmethod
    def unpacked(cls, packed: bytes) -> ModelRecord:
        """Return what was packed."""
        return msgspec.json.decode(packed, type=cls)

    def check_sizes(self, name: str, sizes: Mapping[str, Sequence[int] | None]) -> None:
        """Raise ValueError unless its variables have their arrays' size, and its tables are there.

        Parameters
        ----------
        name : str
            The model's.
        sizes : mapping
            The shapes of all variables by name; None for tables.
        """
        what, missing = f"model {name!r:.80}", (-1,)
        for variable, arrays in self.variables.items():
            size = sum(math.prod(shape) for _, shape in arrays)
            fits = tuple(sizes.get(variable) or missing) == (size,)
            require(fits, f"{what}: variable {variable!r:.80} has not the size of its arrays")
        for table in self.tables.values():
            require(sizes.get(table, missing) is None, f"{what}: there is no table {table!r:.80}")
        for variable in self.scratch.values():
            require(sizes.get(variable) is not None, f"{what}: {variable!r:.80} is not a variable")


def placed_otherwise(here: Arrays, there: Arrays) -> str:
    """Return what is different if arrays are not where they were; empty if nothing is.

    An array with another name at the same place was renamed. But one with the name of another place
    has moved, and would get the values of another array.
    """
    for known, other in zip_longest(here, there):
        if known is None or other is None or known[1] != other[1]:
            return f"expected {_shown(known)}, found {_shown(other)} at its place"
    names = {name for name, _ in here}
    for known, other in zip(here, there, strict=True):
        if known[0] != other[0] and other[0] in names:
            return f"expected {_shown(known)}, found {_shown(other)} at its place"
    return ""


def _shown(array: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing more" if array is None else f"{array[0]!r:.200} of shape {array[1]}"


class ModelRecords:
    """The models of a strategy. Thread-safe.

    Parameters
    ----------
    note : callable
        Notes a record, by name, where others find it; if it raises, the record is not kept.
    """

    def __init__(self, note: Callable[[str, ModelRecord], object]) -> None:
        self._note = note
        self._lock = threading.Lock()  # guards the fields below; not held while it is noted
        self._records: dict[str, ModelRecord] = {}
        self._used: set[str] = set()

    def all(self) -> dict[str, ModelRecord]:
        """Return a snapshot of the records, by the names of the models."""
        with self._lock:
            return self._records.copy()

    def add(self, name: str, record: ModelRecord) -> None:
        """Note a model, or a change of it, for later owners."""
        self._note(name, record)
        self.know(name, record)

    def know(self, name: str, record: ModelRecord) -> None:
        """Take a record over that others know already."""
        with self._lock:
            self._records[name] = record

    def use(self, name: str) -> bool:
        """Note that this process has a handle of a model, or uses a variable; return if it did."""
        with self._lock:
            before = name in self._used
            self._used.add(name)
            return before

    def used(self, name: str) -> bool:
        """Return whether this process has a handle of a model."""
        return name in self._used

    def compared(self, saved: Any) -> tuple[Callable[[str, str], str], set[str], set[str]]:
        """Compare with the models of a checkpoint.

        Parameters
        ----------
        saved : object
            The models that a checkpoint has, from JSON; invalid ones are left out.

        Returns
        -------
        tuple
            A function of the names of a variable here and in the checkpoint, which returns the
            moved arrays, as `placed_otherwise`; and the variables here and there whose values are
            not needed later.
        """
        own = list(self.all().values())
        others = []
        for each in saved.values() if isinstance(saved, dict) else ():
            with suppress(ValueError):
                others.append(typed(each, ModelRecord))
        here, there = _contents(own), _contents(others)

        def moved(now: str, before: str) -> str:
            if now not in here or before not in there:
                return ""
            return placed_otherwise(here[now], there[before])

        return moved, _scratch(own), _scratch(others)

    def waiting(self) -> list[str]:
        """Return the models that others have placed and that this process has not taken up."""
        with self._lock:
            return [name for name in self._records if name not in self._used]


def _contents(records: Iterable[ModelRecord]) -> dict[str, Arrays]:
    return {name: each for record in records for name, each in record.variables.items()}


def _scratch(records: Iterable[ModelRecord]) -> set[str]:
    return {name for record in records for name in record.scratch.values()}
