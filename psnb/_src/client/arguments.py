"""Checks of the arguments of parameters, before anything is sent. Pure."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from psnb._src.server.optimizer import OPTIMIZABLE, Optimizer
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.eviction.policy import LFU, LRU, MOST_UPDATES, SCORE, Eviction, Score
from psnb._src.server.tables.initializers import Constant, Initializer, Uniform
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.transport.half_width import FLOAT16, computed
from psnb._src.utils.arrays import array_of, bits_of, integers_of, untracked
from psnb._src.utils.checks import check_instance, choice, integer, is_integer
from psnb._src.utils.ownership import may_change
from psnb._src.utils.text import ARGUMENT, shown, truncate
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError

_RANKS = {"i": 1, "u": 1, "f": 2}
"""Ranks of the kinds of dtypes: Python numbers are only converted to the same or a higher rank."""


def checked_array(
    value: ArrayLike,
    dtype: np.dtype,
    what: str,
    shape: tuple[int, ...] | None = None,
    reason: str = "",
) -> np.ndarray:
    """Return ``value`` as a contiguous array of ``dtype``, and of ``shape`` for some reason.

    Python numbers and lists are converted; anything that brings a dtype must bring the right one.

    Raises
    ------
    InvalidArrayError
        If it has another dtype or shape, is not an array of numbers, or would lose its fractions.
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
    if shape is not None and array.shape != shape:
        raise InvalidArrayError(f"{what}: expected shape {shape}{reason}, found {array.shape}")
    return unchanging(array) if array.flags.c_contiguous else np.ascontiguousarray(array)


def unchanging(array: np.ndarray) -> np.ndarray:
    """Return an array, or a copy if it is a read-only view of a writable one.

    Read-only arrays are not copied again until they are sent.
    """
    return array if array.flags.writeable or not may_change(array) else array.copy()


def _advice(found: object, dtype: np.dtype) -> str:
    near = isinstance(found, np.dtype) and np.can_cast(found, dtype, "same_kind")
    return f"; pass it as value.astype(np.{dtype})" if near else ""


def checked_ids(ids: ArrayLike, name: str, rows: int | None) -> np.ndarray:
    """Return the ids as contiguous uint64 of the same shape."""
    array = integers_of(ids, f"ids for embedding {name!r}")
    found = bits_of(array)
    # Ids below 0 are very large here, so one comparison is enough: there are 50 arrays a batch.
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
    # Numbers are sent and saved as this machine has them, whatever file they were read from.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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


def as_row_dtypes(
    dtype: DTypeLike, slot_dtype: DTypeLike | None, name: str
) -> tuple[np.dtype, np.dtype | None]:
    """Return how rows, and the state of their optimizer, are stored; None as it is computed with.

    Raises
    ------
    ConfigurationError
        If rows cannot be stored so.
    """
    try:
        kind = np.dtype(dtype)
        slot_kind = None if slot_dtype is None else np.dtype(slot_dtype)
    except TypeError as error:
        raise ConfigurationError(f"embedding {name!r}: {error}") from None
    if computed(kind) not in OPTIMIZABLE:
        raise ConfigurationError(
            f"embedding {name!r}: dtype must be float32, float64, bfloat16 or float16, found {kind}"
        )
    if slot_kind is not None and computed(slot_kind) != computed(kind):
        half = " or, in half width, bfloat16 or float16" if computed(kind) == np.float32 else ""
        raise ConfigurationError(
            f"embedding {name!r}: slot_dtype must be {computed(kind)}, in which rows of {kind} are "
            f"computed with{half}; found {slot_kind}"
        )
    return kind, None if slot_kind == computed(kind) else slot_kind


def check_slots(optimizer: Optimizer | None, slot_dtype: np.dtype | None, name: str) -> None:
    """Raise ConfigurationError if the optimizer's state cannot be stored so.

    Of gradients of 1e-4, as means over many examples have, squares are below what float16 has: they
    become 0, and the steps of Adam a hundred times as long.
    """
    if optimizer is not None and optimizer.slots and optimizer.squares and slot_dtype == FLOAT16:
        raise ConfigurationError(
            f"embedding {name!r}: slot_dtype cannot be float16 with {optimizer!r}, whose state may "
            "be squares of gradients: most are too small for float16. Take slot_dtype='bfloat16', "
            "which has the range of float32"
        )


def check_no_rows(optimizer: Optimizer | None, name: str) -> None:
    """Raise ConfigurationError if an optimizer needs rows, which a variable does not have."""
    if optimizer is not None and optimizer.row_wise:
        raise ConfigurationError(
            f"variable {name!r} cannot have {optimizer!r}, which keeps one number of state a row: "
            "variables have no rows. It is for embeddings; take psnb.Adagrad here"
        )


def check_by_element(optimizer: Optimizer | None, what: str) -> None:
    """Raise ConfigurationError if an optimizer must see the whole of a divided parameter."""
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
    wanted = "psnb.Uniform, Normal, Constant or a finite number"
    raise _must_be(name, "initializer", wanted, initializer)


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
        raise _must_be(name, "padding_idx", "an id or None", padding_idx)
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
        wanted = "psnb.Always, Probability or CountFilter"
        raise _must_be(name, "admission", wanted, admission)
    _require_growing("admission", name, rows)
    return admission


def check_accessor(accessor: CtrAccessor | None, name: str, rows: int | None) -> None:
    """Raise ConfigurationError unless the embedding can have this accessor."""
    if accessor is None:
        return
    check_instance(f"embedding {name!r}: accessor", accessor, CtrAccessor)
    _require_growing("accessor", name, rows)


def as_storage(storage: str, name: str) -> str:
    """Return where rows are, or raise ConfigurationError if there is no such choice."""
    return choice(f"embedding {name!r}: storage", storage, ["memory", "disk"])


_MINUTE = timedelta(minutes=1)


def as_eviction(
    name: str,
    rows: int | None,
    max_rows: int | None,
    max_bytes: int | None,
    evict: str | Score,
    time_to_live: timedelta | int | None,
    accessor: CtrAccessor | None,
    optimizer: Optimizer | None,
) -> Eviction | None:
    """Return when rows leave; None if they stay. Of ``max_bytes`` it has one row at first.

    Raises
    ------
    ConfigurationError
        If the arguments are of the wrong kind, do not fit each other or the embedding.
    """
    what = f"embedding {name!r}"
    updates = minutes = None
    if time_to_live is not None:
        _require_growing("time_to_live", name, rows)
        if isinstance(time_to_live, timedelta):
            minutes = -(-time_to_live // _MINUTE) if time_to_live > timedelta(0) else 0
            if not 1 <= minutes <= MOST_UPDATES:
                raise _must_be(name, "time_to_live", "above 0", time_to_live)
        else:
            updates = integer(f"{what}: time_to_live", time_to_live, 1, MOST_UPDATES)
    if not callable(evict):
        choice(f"{what}: evict", evict, [LRU, LFU, SCORE])
    bounds = {"max_rows": max_rows, "max_bytes": max_bytes}
    given = [each for each, value in bounds.items() if value is not None]
    for each in given:
        _require_growing(each, name, rows)
        integer(f"{what}: {each}", bounds[each], 1)
    if len(given) > 1:
        raise ConfigurationError(f"{what}: give max_rows or max_bytes, not both")
    if not given and evict != LRU:
        raise ConfigurationError(f"{what}: evict= says which rows leave a table with max_rows=")
    if evict == SCORE and accessor is None:
        raise ConfigurationError(
            f"{what}: evict='score' is by the shows and clicks of an accessor: give "
            "accessor=psnb.CtrAccessor()"
        )
    if optimizer is None and (updates or (given and evict == LRU)):
        raise ConfigurationError(
            f"{what}: evict='lru' and a time_to_live in updates are by the updates of an "
            "optimizer: give optimizer=psnb.Adagrad(0.1) or another one, or evict='lfu'"
        )
    if not given and time_to_live is None:
        return None
    most = None if not given else 1 if max_rows is None else int(max_rows)
    return Eviction(most, evict, updates, minutes)


def _must_be(name: str, what: str, wanted: str, found: object) -> ConfigurationError:
    return ConfigurationError(f"embedding {name!r}: {what} must be {wanted}, found {shown(found)}")


def _require_growing(what: str, name: str, rows: int | None) -> None:
    if rows is not None:
        raise ConfigurationError(
            f"embedding {name!r} has {rows} rows, which are always there: {what} is for rows=None "
            "(in a module of PyTorch, psnb.torch.Embedding)"
        )


class NonFinite(StrEnum):
    """What happens to a gradient with NaN or infinities."""

    REFUSE = "refuse"
    SKIP = "skip"
    ALLOW = "allow"


def as_nonfinite(value: str, name: str) -> NonFinite:
    """Return the choice, or raise ConfigurationError if there is no such choice."""
    return NonFinite(choice(f"{name!r}: nonfinite", value, [each.value for each in NonFinite]))


def split_finite(
    ids: np.ndarray, gradients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids with finite gradients only, these gradients, then each other id once.

    An id with one bad gradient is left out with all of its gradients: their sum would be bad.
    """
    bad = np.unique(ids[~np.isfinite(gradients).all(axis=1)])
    good = ~np.isin(ids, bad)
    return ids[good], gradients[good], bad
