"""BatchRows: the rows that one batch uses, each once, and the way back for their gradients. Pure.

A batch names its ids, table by table; each table numbers its distinct ids by *positions*, from 0.
What is not here yet is fetched for all tables and variables in one round trip to each server, and
all gradients are pushed in another one. A framework computes with positions, which are small,
whatever the ids are. Belongs to one thread.
"""

from __future__ import annotations

import dis
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np
from numpy.typing import ArrayLike
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from psnb._src.client.arguments import checked_ids
from psnb._src.client.dense_shards import Blend, PartialGradient
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.ids import DistinctIds
from psnb._src.client.model_records import ModelRecords
from psnb._src.client.pull import pull, push
from psnb._src.client.updates import weigh
from psnb._src.client.variable import Variable
from psnb._src.models.export.manifest import DenseSources, Fetch, RowChunk, TableSource
from psnb._src.models.export.writing import check_nested, leaves_of
from psnb._src.protocol.modes import Mode
from psnb._src.protocol.remote_traceback import RemoteTraceback
from psnb._src.server.hashing import distinct
from psnb._src.server.optimizer import OPTIMIZABLE, Optimizer
from psnb._src.server.tables.operations import rows_in_segment
from psnb._src.server.tables.presence import joined
from psnb._src.server.tables.row_index import GrowingRowIndex
from psnb._src.utils.profiling import PULL, counted_as
from psnb._src.utils.text import shown
from psnb._src.worker.resources import latest_element
from psnb.errors import ConfigurationError, InvalidArrayError

Pushed = np.ndarray | Blend | PartialGradient | list[Any]
"""What may be pushed to a variable: of a list, one after the other."""

_Distinct = tuple[np.ndarray, np.ndarray]


class _TableRows:
    """The distinct ids of one table, and how many of their rows were fetched.

    ``distinct`` returns what `psnb._src.server.kernels.distinct` does.
    """

    def __init__(self, table: Embedding, distinct: Callable[[np.ndarray], _Distinct]) -> None:
        self.table, self._distinct = table, distinct
        self.fetched = 0
        self._found = np.empty(0, np.uint64)
        self._index: GrowingRowIndex | None = None  # made when ids come a second time

    def locate(self, flat: np.ndarray) -> np.ndarray:
        """Return the position of each id; those that were not here get the next ones."""
        if not self._found.size:
            self._found, position = self._distinct(flat)
            return position
        if self._index is None:
            self._index = GrowingRowIndex()
            self._index.insert(self._found)
        found = self._index.insert(flat)
        self._found = self._index.ids()
        return found

    def find(self, number: int) -> int | None:
        """Return the position of one id; None if it is not here."""
        at = np.flatnonzero(self._found == np.uint64(number))
        return int(at[0]) if at.size else None

    def ids(self, at: slice | np.ndarray) -> DistinctIds:
        """Return the ids at positions."""
        return DistinctIds(self._found[at], self.table.padding_idx)

    @property
    def count(self) -> int:
        """How many ids there are."""
        return self._found.size


class BatchRows:
    """The rows of some embeddings that a batch uses.

    Parameters
    ----------
    training : bool
        False for evaluation, as in `psnb.pull`.
    """

    def __init__(self, *, training: bool = True) -> None:
        self._training = training
        # By the table, not by the handle: several handles of a table are one update.
        self._tables: dict[object, _TableRows] = {}
        self._known: dict[tuple[int, int], _Distinct] = {}  # by the size of ids, and their hash

    @counted_as(PULL)
    def locate(self, table: Embedding, *ids: ArrayLike) -> list[np.ndarray]:
        """Return the positions of ids among the rows of their table.

        Parameters
        ----------
        table : Embedding
            Their table.
        *ids : array_like of int
            Each of any shape.

        Returns
        -------
        list of numpy.ndarray
            For each of ``ids`` an int64 array of its shape.

        Raises
        ------
        InvalidArrayError, IdOutOfRangeError
            If they are not ids of the table.
        """
        checked = [checked_ids(each, table.name, table.rows) for each in ids]
        rows = self._rows_of(table)
        if len(checked) == 1:
            return [rows.locate(checked[0].reshape(-1)).reshape(checked[0].shape)]
        flat = [each.reshape(-1) for each in checked]
        found = rows.locate(np.concatenate(flat))
        parts = np.split(found, np.cumsum([each.size for each in flat])[:-1])
        return [part.reshape(each.shape) for part, each in zip(parts, checked, strict=True)]

    def counts(self) -> dict[Embedding, int]:
        """Return how many rows of each table the batch uses."""
        return {each.table: each.count for each in self._tables.values()}

    def find(self, table: Embedding, number: int) -> int | None:
        """Return the position of an id; None if the batch does not use it."""
        return self._rows_of(table).find(number)

    def fetch(
        self, variables: Iterable[Variable] = ()
    ) -> tuple[dict[Variable, np.ndarray], dict[Embedding, np.ndarray]]:
        """Fetch variables and the rows that are not here yet, in one round trip to each server.

        Returns
        -------
        tuple
            The values of the variables; and for each table that has new ids their rows
            ``(n, dim)``, in the order of their positions.
        """
        wanted: dict[Handle, DistinctIds | None] = dict.fromkeys(variables)
        new = [each for each in self._tables.values() if each.count > each.fetched]
        wanted |= {each.table: each.ids(slice(each.fetched, None)) for each in new}
        found = pull(wanted, training=self._training) if wanted else {}
        for each in new:
            each.fetched = each.count
        rows = {each.table: found.pop(each.table) for each in new}
        return found, rows  # type: ignore[return-value]  # what is left are variables

    def push(
        self,
        gradients: Mapping[Handle, Pushed],
        used: Mapping[Embedding, np.ndarray] | None = None,
        loss: float = 0.0,
        weight: float | None = None,
    ) -> None:
        """Push gradients in one round trip to each server; in a closure, at its end.

        Parameters
        ----------
        gradients : mapping
            For a variable its gradient or `Blend`, or a list of both; for an embedding the
            gradients of all its rows here, ``(n, dim)``. More rows than there are, of padding, are
            left out.
        used : mapping, optional
            Of embeddings whose rows were fetched in part for nothing: the positions ``(m,)`` of
            those that get their gradient.
        loss : float, optional
            Of which they are the gradients.
        weight : float, optional
            What the batch counts in its round, as far as that is known.

        Raises
        ------
        InvalidArrayError
            If a gradient is not finite; or the loss, though all gradients may be (those of a part
            of the model that it does not depend on): then the step has learned from no loss.
        """
        given: dict[Handle, object] = {}
        for handle, gradient in gradients.items():
            if isinstance(handle, Embedding):
                assert isinstance(gradient, np.ndarray)
                rows = self._rows_of(handle)
                at = (used or {}).get(handle, slice(rows.count))
                if rows.count:
                    given[rows.table] = rows.ids(at), gradient[at]
            else:
                given[handle] = gradient
        if not math.isfinite(loss) and any(shards_of(h).refuses_nonfinite for h in given):
            raise InvalidArrayError(
                f"the loss is {loss}, so nothing of this step was written. Mend the model or its "
                "data, or make all parameters with nonfinite='skip' or 'allow'"
            )
        if weight is not None:  # also if there is nothing to push
            weigh(weight)
        if given:
            push(given)

    def _rows_of(self, table: Embedding) -> _TableRows:
        key = shards_of(table).key
        if key not in self._tables:
            self._tables[key] = _TableRows(table, self._distinct)
        return self._tables[key]

    def _distinct(self, flat: np.ndarray) -> _Distinct:
        """Return what `distinct` does; ids that came before, for another table, are known.

        A linear and a deep part, say, have a table each for the same ids.
        """
        key = flat.size, xxh3_64_intdigest(flat.data)
        known = self._known.get(key)
        if known is None or not np.array_equal(known[0][known[1]], flat):
            known = self._known[key] = distinct(flat)
        return known


# What a batch is like and where it is from, in a line: to find what is wrong with it. Pure.

_SHOWN = 8


def batch_summary(fields: Iterable[tuple[str, np.ndarray]]) -> str:
    """Return shapes of a batch's fields, and the range of those that are floats.

    Fields with numbers that are not finite come first. At the end is which element of its dataset
    the closure took last: the batch, unless it made the batch of several.
    """
    bad, good = [], []
    for name, array in fields:
        shape = list(array.shape)
        if array.dtype.kind != "f" or not array.size:
            good.append(f"{name} {shape} {array.dtype}")
            continue
        finite = array[np.isfinite(array)]
        span = f"{finite.min():.3g} to {finite.max():.3g}" if finite.size else "nothing finite"
        line = f"{name} {shape} {span}"
        if missing := array.size - finite.size:
            bad.append(f"{line}, {missing} not finite")
        else:
            good.append(line)
    lines = [*bad, *good]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    taken = latest_element()
    source = f"; it is {taken} (elements count from 0)" if taken else ""
    return "; ".join(lines[:_SHOWN]) + more + source


# SizeBuckets: the sizes to which arrays are padded, so that few programs are compiled. Pure.
#
# Threads: several may use one; at worst, one of them uses another size than it would have alone.

_SPARE = 16
"""A sixteenth is left free, for batches that need a little more than the first one."""


class SizeBuckets:
    """Chooses sizes, and prefers those that it has chosen before."""

    def __init__(self) -> None:
        self._used: tuple[int, ...] = ()

    def at_least(self, count: int) -> int:
        """Return a size that is not below ``count`` nor far above it."""
        for size in self._used:
            # A size that was used is compiled: it may be twice too large.
            if count <= size <= max(8, 2 * count):
                return size
        size = padded_size(count + count // _SPARE)
        self._used = tuple(sorted({*self._used, size}))
        return size


def padded_size(count: int) -> int:
    """Return the next size that is 4, 5, 6 or 7 times a power of two; 8 at the least."""
    if count <= 8:
        return 8
    step: int = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


# What functions and objects refer to, as far as it would be pickled with them. Pure.

CoordinatorEntry = Callable[[Any], str | None]
"""Returns what a thing is called, if it is one of those that are looked for."""


def leads_to(value: object, known: CoordinatorEntry, skipped: tuple[type, ...] = ()) -> str | None:
    """Return what a value leads to of what is known; None if it leads to nothing of it.

    Classes are not followed, nor objects of the classes that are skipped.

    Raises
    ------
    Exception
        Whatever is raised by what cannot be pickled.
    """
    try:
        _Searching(known, (type, ModuleType, *skipped)).dump(value)
    except _FoundError as found:
        return found.what
    return None


def used_global(function: FunctionType, known: CoordinatorEntry) -> tuple[str, str] | None:
    """Return a global that a function itself uses and that is known, by its name and what it is."""
    for code in _codes(function.__code__):
        for name in code.co_names:  # attributes are among them
            what = known(function.__globals__.get(name))
            if what is not None and name in _globals(code):
                return name, what
    return None


def functions_of(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that classes define, from a class to its bases."""
    for base in kind.__mro__:
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function


class _FoundError(Exception):
    def __init__(self, what: str) -> None:
        self.what = what


class _Searching(cloudpickle.Pickler):
    def __init__(self, known: CoordinatorEntry, skipped: tuple[type, ...]) -> None:
        super().__init__(io.BytesIO(), protocol=5)
        self._known, self._skipped = known, skipped

    def persistent_id(self, obj: Any) -> int | None:
        if (what := self._known(obj)) is not None:
            raise _FoundError(what)
        return 0 if isinstance(obj, self._skipped) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of those within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _globals(code: CodeType) -> set[str]:
    return {each.argval for each in dis.get_instructions(code) if "GLOBAL" in each.opname}


# StepDescription: the operations of a training step in their order, psnb's own too. Pure.

_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf", "complex": "c"}
_TEXT = 60


@dataclass(frozen=True, slots=True)
class StepOperation:
    """One operation of a step.

    Attributes
    ----------
    name : str
        ``"pull"`` and ``"push"`` are psnb's; all others are as the framework calls them.
    inputs, outputs : tuple of str
        The arrays that go in and come out: dtype and shape, such as ``"f32[512,16]"``.
    note : str
        Of a pull or push, the parameter and the servers that have it; of an operation that the
        framework derived to compute gradients, ``"gradient"``; of a module, where it is.
    depth : int
        0; more for an operation within others.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    note: str = ""
    depth: int = 0


class StepDescription(tuple[StepOperation, ...]):
    """The operations of a step; printed, a line each. All that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        names = ["  " * each.depth + each.name for each in self]
        width = max(map(len, names), default=0)
        return "\n".join(
            "  ".join((name.ljust(width), _arrays(each), each.note)).rstrip()
            for name, each in zip(names, self, strict=True)
        )


def pulling(rows: Iterable[tuple[Handle, int | None]]) -> list[StepOperation]:
    """Return the pull of parameters; of an embedding, of how many rows, if that is known."""
    return [
        StepOperation("pull", outputs=(_array(handle, count),), note=_where(handle))
        for handle, count in rows
    ]


def pushing(rows: Iterable[tuple[Handle, int | None]]) -> list[StepOperation]:
    """Return the push of the gradients of parameters, as `pulling`."""
    return [
        StepOperation("push", inputs=(_array(handle, count),), note=_where(handle))
        for handle, count in rows
    ]


def array_text(dtype: str, shape: Iterable[object]) -> str:
    """Return an array's dtype and shape in short: ``f32[512,16]``."""
    kind = dtype.rstrip("0123456789")
    return f"{_SHORT.get(kind, kind)}{dtype[len(kind) :]}[{','.join(map(str, shape))}]"


def _array(handle: Handle, count: int | None) -> str:
    if isinstance(handle, Embedding):
        return array_text(handle.dtype.name, ("rows" if count is None else count, handle.dim))
    return array_text(np.dtype(handle.dtype).name, handle.shape)


def _where(handle: Handle) -> str:
    kind = "embedding" if isinstance(handle, Embedding) else "variable"
    shards = shards_of(handle)
    return f"{kind} {handle.name!r} on {', '.join(shards.servers())}"


def _arrays(operation: StepOperation) -> str:
    sides = [_short(", ".join(each)) for each in (operation.inputs, operation.outputs) if each]
    return " -> ".join(sides)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


# FlatVariables: many arrays by name, kept in few variables on the servers. Pure.
#
# A model has hundreds of small parameters. Those of one dtype and one optimizer lie one after
# another in one variable, so that a step reads and writes a few. The optimizers work element by
# element, and what a step has no gradient for stays as it is, with its count of updates
# (`FlatVariables.gradients`), so the result is that of one variable each; but ``clipnorm`` counts
# the norm of all of them together.

OptimizerChoice = Optimizer | Callable[[str], Optimizer]
"""An optimizer for all parameters, or a function from a parameter's name to one."""


class Strategy(Protocol):
    """What places parameters; see `psnb.ParameterServerStrategy`."""

    @property
    def mode(self) -> Mode:
        """When pushes are applied."""

    @property
    def parameters(self) -> Mapping[str, Variable | Embedding]:
        """All variables and embeddings by name."""

    @property
    def __psnb_models__(self) -> ModelRecords:
        """The models that were placed on it."""

    def variable(self, *arguments: Any, **options: Any) -> Variable:
        """Put an array on the servers."""

    def embedding(self, *arguments: Any, **options: Any) -> Embedding:
        """Put a table on the servers."""


def check_strategy(what: str, given: Any) -> None:
    """Check that a front door was given a strategy, not a client, or a model in its place.

    Raises
    ------
    ConfigurationError
        If it is none.
    """
    if not hasattr(given, "__psnb_models__"):
        raise ConfigurationError(
            f"{what}: strategy must be a psnb.ParameterServerStrategy, found {type(given).__name__}"
        )


class ArrayLocation(NamedTuple):
    """Where an array lies: in which variable, from which element on, and its shape."""

    variable: int
    start: int
    shape: tuple[int, ...]

    @property
    def part(self) -> slice:
        """Its elements."""
        return slice(self.start, self.start + math.prod(self.shape))


Members = tuple[Variable, list[str], np.ndarray | None]
"""A variable, the names of some of its arrays, and their ranges there; None if these are all."""


class FlatVariables:
    """Arrays by name, in few variables.

    Parameters
    ----------
    variables : sequence of Variable
        Each with one axis.
    places : mapping of str to ArrayLocation
        Where each array lies.
    """

    def __init__(self, variables: Sequence[Variable], places: Mapping[str, ArrayLocation]) -> None:
        self.variables, self.places = tuple(variables), dict(places)

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatVariables, (self.variables, self.places)

    def split(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays by name, as parts of the variables' values (arrays of any kind)."""
        return {
            name: values[place.variable][place.part].reshape(place.shape)
            for name, place in self.places.items()
        }

    def grouped(self, arrays: Mapping[str, Any]) -> list[list[Any]]:
        """Return the arrays of each variable, in the order in which they lie there."""
        groups: list[list[Any]] = [[] for _ in self.variables]
        for name, place in sorted(self.places.items(), key=lambda item: item[1].start):
            groups[place.variable].append(arrays[name])
        return groups

    def join(self, arrays: Mapping[str, np.ndarray | float]) -> list[np.ndarray | None]:
        """Return the variables' values with these arrays and zeros elsewhere; None for no array."""
        joined: list[np.ndarray | None] = [None] * len(self.variables)
        for name, array in arrays.items():
            place = self.places[name]
            if (whole := joined[place.variable]) is None:
                variable = self.variables[place.variable]
                whole = joined[place.variable] = np.zeros(variable.shape, variable.dtype)
            whole[place.part].reshape(place.shape)[...] = array
        return joined

    def gradients(
        self, arrays: Mapping[str, np.ndarray], *, together: bool = False
    ) -> dict[Variable, np.ndarray | PartialGradient]:
        """Return what to push: the gradients of arrays; those without one stay as they are.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            Those that have a gradient.
        together : bool
            Whether all arrays count the update, as Keras counts; then there is a push to each
            variable, even of nothing.
        """
        found: dict[Variable, np.ndarray | PartialGradient] = {}
        for variable, names, ranges in self.members(arrays, empty=together):
            parts = [np.reshape(arrays[name], -1) for name in names]
            gradient = np.concatenate([np.empty(0, variable.dtype), *parts], dtype=variable.dtype)
            found[variable] = (
                gradient if ranges is None else PartialGradient(gradient, ranges, together)
            )
        return found

    def members(self, chosen: Collection[str], *, empty: bool = False) -> list[Members]:
        """Return some arrays by variable, in the order in which they lie there.

        With ``empty``, variables that have none of them are there as well.
        """
        found: list[Members] = []
        for variable, names in zip(self.variables, self._in_order, strict=True):
            there = [name for name in names if name in chosen]
            spans = [self.places[name].part for name in there]
            some = [(span.start, span.stop) for span in spans if span.start < span.stop]
            if len(there) == len(names):
                found.append((variable, there, None))
            elif some or empty:
                ranges = joined(np.array(some, np.int64).reshape(-1, 2))
                found.append((variable, there, ranges))
        return found

    @cached_property
    def _in_order(self) -> list[list[str]]:
        return self.grouped({name: name for name in self.places})

    def blends(
        self, shares: Mapping[str, np.ndarray | float], terms: Mapping[str, np.ndarray]
    ) -> dict[Variable, Blend]:
        """Return what to push where arrays are moved; see `Blend`.

        Arrays that have neither a share nor a term stay as they are, and so do variables without
        any other.
        """
        moved = [name for name, term in terms.items() if np.any(shares[name]) or np.any(term)]
        joined = [self.join({name: each[name] for name in moved}) for each in (shares, terms)]
        return {
            variable: Blend(share, term)
            for variable, share, term in zip(self.variables, *joined, strict=True)
            if share is not None and term is not None
        }

    @classmethod
    def joined(cls, several: Sequence[FlatVariables]) -> FlatVariables:
        """Return the arrays of several together."""
        variables: list[Variable] = []
        places: dict[str, ArrayLocation] = {}
        for each in several:
            start = len(variables)
            places |= {n: p._replace(variable=p.variable + start) for n, p in each.places.items()}
            variables += each.variables
        return cls(variables, places)

    def read(self) -> dict[str, np.ndarray]:
        """Fetch all arrays."""
        return self.split([variable.read() for variable in self.variables])

    def sources(self) -> DenseSources:
        """Return where the arrays are, in the form of exported models."""
        return DenseSources(
            {each.name: (each.shape[0], each.dtype.name) for each in self.variables},
            {n: (self.variables[p.variable].name, p.start) for n, p in self.places.items()},
        )

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all arrays; optimizer state stays as it is.

        Raises
        ------
        InvalidArrayError
            As `check`; nothing was changed.
        """
        self.check(arrays)
        for variable, value in zip(self.variables, self.join(arrays), strict=True):
            if value is not None:
                variable.assign(value)

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidArrayError if an array is missing, unknown or of another shape."""
        if missing := sorted(self.places.keys() ^ arrays.keys()):
            raise InvalidArrayError(
                f"parameters do not have the names that they were made with: {missing[:3]}; they "
                f"are {sorted(self.places)[:6]} ..."
            )
        for name, place in self.places.items():
            if np.shape(arrays[name]) != place.shape:
                raise InvalidArrayError(
                    f"parameter {name!r} was made with shape {place.shape}, and now has shape "
                    f"{np.shape(arrays[name])}: a model whose layers changed is another model; "
                    "place it again, under another name="
                )


def place_flat(
    strategy: Strategy,
    name: str,
    arrays: Mapping[str, np.ndarray],
    optimizer: OptimizerChoice,
    apart: Callable[[str], object] = lambda name: None,
) -> FlatVariables:
    """Put arrays on the servers.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        The variable's; if there are several, they are called ``name``, ``name.1``, ...
    arrays : mapping of str to numpy.ndarray
        The initial values, float32 or float64.
    optimizer : Optimizer or callable
        For all arrays, or by name.
    apart : callable, optional
        Says by name which arrays may lie in one variable: those of which it is equal.

    Raises
    ------
    ConfigurationError
        If an array has another dtype, there is no optimizer for it, or one takes a norm of arrays
        of two dtypes; nothing was placed.
    """
    return _placed(strategy, name, arrays, lambda each: optimizer_for(optimizer, each), apart)


def place_state(strategy: Strategy, name: str, arrays: Mapping[str, np.ndarray]) -> FlatVariables:
    """Put arrays on the servers that steps move beside what learns; see `FlatVariables.blends`.

    Parameters are those of `place_flat`.
    """
    return _placed(strategy, name, arrays, lambda each: None)


def _placed(
    strategy: Strategy,
    name: str,
    arrays: Mapping[str, np.ndarray],
    optimizer: Callable[[str], Optimizer | None],
    apart: Callable[[str], object] = lambda name: None,
) -> FlatVariables:
    groups: dict[tuple[np.dtype, Optimizer | None, object], list[str]] = {}
    for each, array in arrays.items():
        if array.dtype not in OPTIMIZABLE:
            raise ConfigurationError(
                f"parameter {each!r} is of {array.dtype}; servers keep float32 and float64. Make "
                "the parameters float32, and compute in half precision where it pays (autocast)"
            )
        groups.setdefault((array.dtype, optimizer(each), apart(each)), []).append(each)
    _check_norms([(dtype, choice) for dtype, choice, _ in groups])
    names = [name if not i else f"{name}.{i}" for i in range(len(groups))]
    check_free(strategy, names)
    variables, places = [], {}
    for i, ((dtype, choice, _), members) in enumerate(groups.items()):
        start = 0
        for each in members:
            places[each] = ArrayLocation(i, start, arrays[each].shape)
            start += arrays[each].size
        flat = np.concatenate([arrays[each].reshape(-1) for each in members], dtype=dtype)
        variables.append(strategy.variable(flat, names[i], choice))
    return FlatVariables(variables, {each: places[each] for each in arrays})


def _check_norms(groups: Sequence[tuple[np.dtype, Optimizer | None]]) -> None:
    """Raise ConfigurationError if a norm of several dtypes is wanted, which no variable has."""
    seen: dict[Optimizer, np.dtype] = {}
    for dtype, choice in groups:
        if choice is None or (choice.clipnorm is None and choice.by_element):
            continue
        if seen.get(choice, dtype) != dtype:
            raise ConfigurationError(
                f"some parameters are {seen[choice]} and some {dtype}, which lie in two variables, "
                f"but {choice!r} takes the norm of all of them: make them of one dtype, or give "
                "those of each dtype an optimizer of their own, by name"
            )
        seen[choice] = dtype


def optimizer_for(choice: OptimizerChoice, name: str) -> Optimizer:
    """Return the optimizer for a parameter, or raise ConfigurationError if there is none."""
    function = callable(choice) and not isinstance(choice, Optimizer | type)
    found = choice(name) if function else choice  # type: ignore[operator]
    if not isinstance(found, Optimizer):
        raise ConfigurationError(
            f"parameter {name!r}: expected an optimizer of psnb, such as psnb.Adam(1e-3), or a "
            f"function from the parameter's name to one; found {shown(found)}. The servers apply "
            "gradients, so optimizers of other packages cannot do it; those of PyTorch, Keras and "
            "optax are taken over by psnb.torch.distribute(optimizer=), compile of psnb.keras and "
            "psnb.jax.optimizer"
        )
    return found


def check_free(strategy: Strategy, names: Sequence[str]) -> None:
    """Raise ConfigurationError if a name is taken."""
    if taken := sorted(strategy.parameters.keys() & set(names)):
        raise ConfigurationError(
            f"the strategy has parameters called {taken} already, which are of no model that was "
            "placed wholly: give this model another name="
        )


# What exports of all frameworks share: the tracing, and what is written of a model. Pure.


@contextmanager
def tracing(what: str, hint: Callable[[Exception], str] = lambda error: "") -> Iterator[None]:
    """Raise ConfigurationError where a framework cannot trace a model, by the user's own lines.

    These are a note. The framework's own traceback, of up to 250 lines, is the error's
    ``__context__``, which is not shown.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises when it is traced
        message = str(error).partition("\n\n")[0]  # then come frameworks' advice and addresses
        found = ConfigurationError(
            f"psnb.export: {what} cannot be exported for batches of any size: "
            f"{type(error).__name__}: {message[:600].rstrip('. ')}{hint(error)}"
        )
        if lines := RemoteTraceback.of(error).text():
            found.add_note(lines)
        raise found from None


def returned(outputs: Any, forms: Iterable[tuple[str, Iterable[Any]]]) -> tuple[Any, list[Fetch]]:
    """Return the form of what a model returns, and its arrays.

    Parameters
    ----------
    outputs : object
        The structure, with numbers in place of its arrays.
    forms : iterable of (str, iterable)
        For each number dtype and shape; what is not an int in a shape depends on the batch.
    """
    form = check_nested(outputs)
    names = [name for _, name in sorted(leaves_of(form))]
    return form, [
        Fetch(name, dtype, tuple(size if isinstance(size, int) else None for size in shape))
        for name, (dtype, shape) in zip(names, forms, strict=True)
    ]


# Tables as exports take them: what they are, and their rows in chunks.
#
# Rows are fetched while they are written, so memory does not depend on their number.


def table_source(table: Embedding) -> TableSource:
    """Return a table as `psnb.export` takes it."""
    spec = shards_of(table).spec
    return TableSource(
        spec.name,
        spec.dim,
        spec.rows,
        spec.dtype,
        spec.padding_idx,
        spec.initializer,
        spec.admission,
        spec.seed,
        spec.accessor is not None,
        lambda: _fixed(table, spec.rows) if spec.rows is not None else _growing(table),
    )


def _fixed(table: Embedding, rows: int) -> Iterator[RowChunk]:
    for part in _parts(table, rows):
        ids = np.arange(part.start, part.stop, dtype=np.uint64)
        yield RowChunk(ids, table.lookup(ids, training=False))


def _growing(table: Embedding) -> Iterator[RowChunk]:
    accessor = table.accessor
    for segment in shards_of(table).segments():
        scores = None if accessor is None else accessor.score(segment["show"], segment["click"])
        yield RowChunk(segment["ids"], segment["values"], scores)


# All rows of a table, in parts, so that no server stands still for long.


def read_rows(table: Embedding) -> np.ndarray:
    """Return all rows of a table that has a number of them."""
    assert table.rows is not None
    return np.concatenate([chunk.rows for chunk in _fixed(table, table.rows)])


def write_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Replace the rows of ids."""
    for part in _parts(table, len(ids)):
        table.assign(ids[part], np.ascontiguousarray(rows[part], table.dtype))


def _parts(table: Embedding, count: int) -> Iterator[slice]:
    step = rows_in_segment(table.dim * table.dtype.itemsize)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def local_value(dtype: object, shape: Sequence[int], value: np.ndarray) -> str:
    """Return what identifies a value that stays with a model, such as a frozen embedding."""
    digest = xxh3_64_hexdigest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return f"{dtype} of shape {tuple(shape)} with checksum {digest}, on no server"
