"""Checks of the arguments of parameters, before anything is sent. Pure."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike, DTypeLike

from psnb._src.client.requests import Request, ServerClient, on_table
from psnb._src.client.updates import client_of
from psnb._src.placement.layout import ShardId
from psnb._src.server.optimizer import OPTIMIZABLE, Optimizer
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.initializers import Constant, Initializer, Uniform
from psnb._src.server.tables.operations import CountUpdates, ReadOptimizer, ReadRate, TuneOptimizer
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.updater import tuned
from psnb._src.utils.arrays import array_of, bits_of, integers_of, untracked
from psnb._src.utils.checks import integer, is_integer
from psnb._src.utils.files import require, typed
from psnb._src.utils.ownership import may_change
from psnb._src.utils.text import ARGUMENT, shown, truncate
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError, PsnbError

_RANKS = {"i": 1, "u": 1, "f": 2}
"""Ranks of the kinds of dtypes: Python numbers are only converted to the same or a higher rank."""


def checked_array(value: ArrayLike, dtype: np.dtype, what: str) -> np.ndarray:
    """Return ``value`` as a contiguous array of ``dtype``.

    Python numbers and lists are converted; anything that brings a dtype must bring the right one.

    Raises
    ------
    InvalidArrayError
        If it has another dtype, is not an array of numbers, or would lose its fractions.
    """
    value = untracked(value)
    found = getattr(value, "dtype", None)
    if found is not None and found != dtype:
        raise InvalidArrayError(
            f"{what}: expected dtype {dtype}, found {found}{_advice(found, dtype)}"
        )
    try:
        plain = np.asarray(value)
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArrayError(
            f"{what}: expected an array of {dtype}, found {type(value).__name__}: "
            f"{truncate(str(error), ARGUMENT)}"
        ) from error
    higher = _RANKS.get(plain.dtype.kind, 3) > _RANKS[dtype.kind]
    if plain.size and higher and not _are_integers(value, plain):
        raise InvalidArrayError(f"{what}: expected numbers for {dtype}, found {plain.dtype}")
    return unchanging(array) if array.flags.c_contiguous else np.ascontiguousarray(array)


def unchanging(array: np.ndarray) -> np.ndarray:
    """Return an array, or a copy if it cannot be written, but what it is a view of can.

    What cannot be written is not copied any more until it is sent.
    """
    return array if array.flags.writeable or not may_change(array) else array.copy()


def _advice(found: object, dtype: np.dtype) -> str:
    near = isinstance(found, np.dtype) and np.can_cast(found, dtype, "same_kind")
    return f"; pass it as value.astype(np.{dtype})" if near else ""


def checked_ids(ids: ArrayLike, name: str, rows: int | None) -> np.ndarray:
    """Return the ids as contiguous uint64 of the same shape."""
    array = integers_of(ids, f"ids for embedding {name!r}")
    found = bits_of(array)
    # Those below 0 are very large here, so one look is enough: there are 50 arrays a batch.
    most = 2**63 if array.dtype.kind == "i" else 2**64
    if rows is not None and found.size and int(found.max()) >= min(rows, most):
        bad = _outside(array, rows)
        raise IdOutOfRangeError(
            f"embedding {name!r} has {rows} rows, so ids are 0 to {rows - 1}; found id {bad}"
            f"{_place(array, bad)}"
        )
    return unchanging(found)


def checked_rows(rows: ArrayLike, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return positions along a variable's first axis as contiguous int64 of the same shape."""
    if not shape:
        raise InvalidArrayError(f"variable {name!r} is a single number: it has no rows")
    array = integers_of(rows, f"rows of variable {name!r}")
    if (bad := _outside(array, shape[0])) is not None:
        raise IdOutOfRangeError(
            f"variable {name!r} has shape {shape}, so rows are 0 to {shape[0] - 1}; found row {bad}"
        )
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)


def _outside(array: np.ndarray, rows: int) -> int | None:
    if not array.size:
        return None
    low, high = int(array.min()), int(array.max())
    return low if low < 0 else high if high >= rows else None


def _place(array: np.ndarray, number: int | None) -> str:
    """Return where a number is for the first time, for messages."""
    at = [int(index) for index in np.argwhere(array == number)[0]]
    return f" at {at}" if at else ""


def _are_integers(value: ArrayLike, array: np.ndarray) -> bool:
    """Return whether these are integers; NumPy makes floats of them if some are above int64."""
    if array.dtype != np.float64 or hasattr(value, "dtype") or not array.size:
        return False
    return all(isinstance(number, int) for number in np.asarray(value, object).flat)


def check_rows(name: str, dim: int, rows: int | None) -> None:
    """Raise ConfigurationError unless this can be an embedding's size."""
    integer(f"embedding {name!r}: dim", dim, 1)
    if rows is not None:  # None is for any id
        integer(f"embedding {name!r}: rows", rows, 1)


def initial_array(value: ArrayLike, dtype: DTypeLike | None, name: str) -> np.ndarray:
    """Return a variable's initial value as an array; Python floats become float32.

    Raises
    ------
    ConfigurationError
        If it is not an array of integers or floats.
    """
    try:
        array = array_of(value) if dtype is None else np.asarray(untracked(value), dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"variable {name!r}: the initial value is not an array: {error}"
        ) from error
    if dtype is None and not hasattr(value, "dtype") and array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise ConfigurationError(
            f"variable {name!r}: the initial value must be integers or floats, found {array.dtype}"
        )
    return array


def check_optimizer(optimizer: Optimizer | None, dtype: np.dtype, name: str) -> None:
    """Raise ConfigurationError unless the optimizer can update parameters of this dtype."""
    if optimizer is None:
        return
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"{name!r}: optimizer must be one of psnb's, for example psnb.Adagrad(0.1), "
            f"found {shown(optimizer)}. psnb.jax.optimizer makes one of a transformation of optax"
        )
    if dtype not in OPTIMIZABLE:
        raise ConfigurationError(f"{name!r}: optimizers need float32 or float64, found {dtype}")


def check_by_element(optimizer: Optimizer | None, what: str) -> None:
    """Raise ConfigurationError if an optimizer must see the whole of what has several parts."""
    if optimizer is not None and not optimizer.by_element:
        raise ConfigurationError(
            f"{what} cannot have {optimizer!r}: it does not work by element, but by a norm or "
            "another sum of a whole variable, which no server sees here. Take a transformation "
            "without that, or another optimizer with clipnorm=, which servers do together"
        )


def as_initializer(initializer: Initializer | float | None, name: str) -> Initializer:
    """Return the initializer; a number becomes a `Constant`, None the default.

    Raises
    ------
    ConfigurationError
        If it is none of these.
    """
    if initializer is None:
        return Uniform()
    if isinstance(initializer, Initializer):
        return initializer
    if isinstance(initializer, int | float | np.number):
        return Constant(initializer)
    raise ConfigurationError(
        f"embedding {name!r}: initializer must be psnb.Uniform, Normal, Constant or a finite "
        f"number, found {shown(initializer)}"
    )


def as_padding(padding_idx: int | None, name: str, rows: int | None) -> int | None:
    """Return the padding id as an unsigned number of 64 bits.

    Raises
    ------
    ConfigurationError
        If it cannot be an id of the embedding.
    """
    if padding_idx is None:
        return None
    if not is_integer(padding_idx):
        raise ConfigurationError(
            f"embedding {name!r}: padding_idx must be an id or None, found {shown(padding_idx)}"
        )
    return int(checked_ids(padding_idx, name, rows))


def as_admission(admission: Admission | None, name: str, rows: int | None) -> Admission:
    """Return the admission; None becomes the default.

    Raises
    ------
    ConfigurationError
        If it is not an admission, or the embedding has fixed rows.
    """
    if admission is None:
        return Always()
    if not isinstance(admission, Admission):
        raise ConfigurationError(
            f"embedding {name!r}: admission must be psnb.Always, Probability or CountFilter, found "
            f"{shown(admission)}"
        )
    _require_growing("admission", name, rows)
    return admission


def check_accessor(accessor: CtrAccessor | None, name: str, rows: int | None) -> None:
    """Raise ConfigurationError unless the embedding can have this accessor."""
    if accessor is None:
        return
    if not isinstance(accessor, CtrAccessor):
        raise ConfigurationError(
            f"embedding {name!r}: accessor must be a psnb.CtrAccessor, found {shown(accessor)}"
        )
    _require_growing("accessor", name, rows)


def _require_growing(what: str, name: str, rows: int | None) -> None:
    if rows is not None:
        raise ConfigurationError(
            f"embedding {name!r} has {rows} rows, which are always there: {what} is for rows=None"
        )


# Checks of a gradient before it is sent: is it finite, and what is its norm? Pure.
#
# They are done here, not on the servers, because a server sees only its part of a gradient, and
# because a bad gradient must be refused before any server has taken its part.


class NonFinite(StrEnum):
    """What happens to a gradient with NaN or infinities."""

    REFUSE = "refuse"
    SKIP = "skip"
    ALLOW = "allow"


def as_nonfinite(value: str, name: str) -> NonFinite:
    """Return the choice, or raise ConfigurationError if there is no such choice."""
    try:
        return NonFinite(value)
    except ValueError:
        choices = ", ".join(repr(choice.value) for choice in NonFinite)
        raise ConfigurationError(
            f"{name!r}: nonfinite must be one of {choices}, found {shown(value)}"
        ) from None


def split_finite(
    ids: np.ndarray, gradients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids with finite gradients only, these gradients, then each other id once.

    An id with one bad gradient is left out with all of its gradients: their sum would be bad.
    """
    bad = np.unique(ids[~np.isfinite(gradients).all(axis=1)])
    good = ~np.isin(ids, bad)
    return ids[good], gradients[good], bad


# LiveOptimizer: the optimizer of a variable or embedding, as it is on the servers right now.
#
# It keeps no hyperparameters: reading asks a server, so all processes see the same values. It
# pickles as a description, like the `Variable` or `Embedding` that it belongs to. Any number of
# threads may use one.


class LiveOptimizer:
    """Hyperparameters that can be read and set while training goes on.

    ``table.optimizer.learning_rate = 0.01`` applies from the next update on, on every shard. So
    does every other hyperparameter of the optimizer (and a schedule in place of a number), except
    those that need other optimizer state, such as ``centered``. Setting returns when all servers
    have the value. In a closure it happens at once, not at the end, and again if the closure runs
    again. Restoring a checkpoint does not change hyperparameters.

    An embedding over several servers takes a ``clipnorm`` only if it was made with one: to know the
    norm of a push, its gradients must be summed by id before they are sent, which takes half as
    long as the push where ids do not repeat.

    Reading and setting raise `ServerLostError` if a server is gone; setting may then have reached
    the others. A value out of its range raises `ConfigurationError` and changes nothing.

    Parameters
    ----------
    made : Optimizer
        What the parameter was made with.
    name : str
        The parameter's name, for messages.
    tables : sequence of tuple
        Each shard, and the table there.
    server_client : ServerClient or None
        The client of their servers; None for the process's own.
    clips : bool
        Whether servers know the norm of a push, for ``clipnorm``.
    """

    __slots__ = ("_clips", "_made", "_name", "_server_client", "_tables")

    def __init__(
        self,
        made: Optimizer,
        name: str,
        tables: Sequence[tuple[ShardId, str]],
        server_client: ServerClient | None,
        clips: bool,
    ) -> None:
        # Not by this class's __setattr__, which sets hyperparameters.
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_tables", tuple(tables))
        object.__setattr__(self, "_server_client", server_client)
        object.__setattr__(self, "_clips", clips)

    def __reduce__(self) -> tuple[Any, ...]:
        return LiveOptimizer, (self._made, self._name, self._tables, None, self._clips)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names()]

    def __repr__(self) -> str:
        try:
            return repr(self.current())
        except PsnbError:  # a repr must also work after the strategy is closed
            return f"<psnb optimizer of {self._name!r}, out of reach; made as {self._made!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names():
            raise AttributeError(f"{type(self._made).__name__} has no hyperparameter {name!r}")
        return getattr(self.current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names():
            raise ConfigurationError(
                f"{type(self._made).__name__} of {self._name!r} has no hyperparameter {name!r}; "
                f"it has {', '.join(self._names())}"
            )
        if name == "clipnorm" and value is not None and not self._clips:
            raise ConfigurationError(
                f"{self._name!r} was made without clipnorm, so its pushes do not carry their norm, "
                "and no server sees the whole of one: make it with clipnorm=, if only with one "
                "that clips nothing (clipnorm=1e30), which can then be changed"
            )
        # Checked here as well, so that no server accepts what another would refuse.
        checked = getattr(tuned(self._made, self._name, {name: value}), name)
        tune = TuneOptimizer({name: checked})
        self._reach().call([on_table(shard, table, tune) for shard, table in self._tables])

    @property
    def iterations(self) -> int:
        """How many updates were applied: one for each push, or round in mode `Sync`; read-only.

        Of a parameter over several servers, on the one with the most: a push to an embedding is an
        update only where some of its rows are. Checkpoints restore it.

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        requests = [on_table(shard, table, CountUpdates()) for shard, table in self._tables]
        return max(self._reach().call(requests))

    def current(self) -> Optimizer:
        """Ask the first shard's server for the optimizer as it is now."""
        return self._reach().call([self.request()])[0]

    def request(self) -> Request:
        """Return the request for the current optimizer."""
        shard, table = self._tables[0]
        return on_table(shard, table, ReadOptimizer())

    def rate_request(self) -> Request:
        """Return the request for the learning rate of the next update."""
        shard, table = self._tables[0]
        return on_table(shard, table, ReadRate())

    def describe(self) -> dict[str, Any]:
        """Return name and current hyperparameters as JSON can hold them."""
        return self.current().describe()

    def _names(self) -> list[str]:
        return [field.name for field in fields(self._made)]

    def _reach(self) -> ServerClient:
        return client_of(self._server_client)


# ModelRecords: which models were placed on a strategy, and what of each is in which parameter.
#
# The parameters of a model lie one after another in few variables, whose values do not show what
# they belong to. A record does, and goes wherever the values go: to the scheduler, for those who
# attach the strategy, and into checkpoints. It is made when a model was placed wholly, and not
# before: what an interrupt has left unfinished has none.

Arrays = tuple[tuple[str, tuple[Annotated[int, Meta(ge=0, lt=1 << 53)], ...]], ...]
"""Names and shapes of the arrays in a variable, in the order in which they lie there."""


class ModelRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """What of a model is in which parameter of its strategy.

    Attributes
    ----------
    arrays : mapping of str to mapping
        For each kind of arrays (those that learn, those that are moved) what the variables have, by
        their names.
    tables : mapping of str to str
        By what the model calls them the names of its tables.
    local : mapping of str to str
        By name what identifies the values that are not on servers, such as frozen embeddings.
    scratch : mapping of str to str
        By what it is for the name of a variable whose value is not needed later, such as metrics.
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

    What has another name at the same place was renamed. But what has the name of another place has
    moved, and would get the values of another array.
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
            The models that a checkpoint has, from JSON; those that are none are left out.

        Returns
        -------
        tuple
            What takes the name of a variable, and that of one in the checkpoint, and returns what
            has moved, as `placed_otherwise`; and the variables here and there whose values are
            not needed later.
        """
        own = list(self.all().values())
        others = list(_readable(saved if isinstance(saved, dict) else {}))
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


def _readable(saved: Mapping[str, Any]) -> Iterator[ModelRecord]:
    for each in saved.values():
        with suppress(ValueError):
            yield typed(each, ModelRecord)
