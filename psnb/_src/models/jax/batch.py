"""BatchFunction: a user's function of parameters, rows and a batch, with what it is applied to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.jax_program import COMBINERS, with_x64
from psnb._src.models.jax.variables import TreeVariables
from psnb._src.models.shared import BatchRows, FlatVariables, SizeBuckets
from psnb._src.utils.arrays import integers_of
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError

Ids = np.ndarray | Ragged


@dataclass(frozen=True, eq=False)
class BatchFunction:
    """A function of a model for one batch; travels with closures.

    Attributes
    ----------
    function : callable
        ``function(params, rows, batch)``, with ``key`` if there is a seed; pure.
    params : TreeVariables
        Its parameters; without any, those of a tree that is None.
    tables : dict of str to Embedding
        The table of each feature.
    ids : callable or None
        Takes a batch, returns the ids of each feature; None for ``batch[feature]``.
    combiners : dict of str to str
        How the rows of bags become one, by feature.
    seed : int or None
        Of the random keys.
    device : str or None
        Where it is computed; None for JAX's own choice.
    learns, weight : callable or None
        As `psnb.jax.step` takes them.
    """

    function: Callable[..., Any]
    params: TreeVariables
    tables: dict[str, Embedding]
    ids: Callable[[Any], Mapping[str, Any]] | None
    combiners: dict[str, str]
    seed: int | None
    device: str | None
    learns: Callable[[str], bool] | None = None
    weight: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """What the function is called."""
        found: str = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return found

    def ids_of(self, batch: Any) -> dict[str, Ids]:
        """Return the ids of each feature.

        Raises
        ------
        ConfigurationError
            If the batch lacks a feature, or ``ids`` does.
        InvalidArrayError
            If they are not integers.
        """
        names = list(self.tables)
        try:
            if self.ids is None:
                found: Mapping[str, Any] = {name: batch[name] for name in names}
            else:
                found = made_ids(self.ids, batch)
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"the ids of a batch could not be found ({type(error).__name__}: {error}): the "
                f"batch has {batch_text(batch)}, and tables are there for {names}. ids= takes a "
                "function from a batch to a dict of ids, one for each table"
            ) from error
        if not isinstance(found, Mapping) or (missing := [n for n in names if n not in found]):
            given = list(found) if isinstance(found, Mapping) else type(found).__name__
            raise ConfigurationError(
                f"ids(batch) must return the ids of {names}, found {given}; missing are "
                f"{missing if isinstance(found, Mapping) else names}"
            )
        return {name: as_ids(name, found[name]) for name in names}


def batch_function(
    function: Callable[..., Any],
    params: TreeVariables | None,
    tables: Mapping[str, Embedding] | None,
    ids: Callable[[Any], Mapping[str, Any]] | None,
    combiner: str | Mapping[str, str],
    seed: int | None,
    device: Any,
) -> BatchFunction:
    """Return what a user gave, checked; see `psnb.jax.step`."""
    if not callable(function):
        raise ConfigurationError(f"psnb.jax: a function is expected, found {shown(function)}")
    if params is None:
        params = TreeVariables(FlatVariables((), {}), None)
    if not isinstance(params, TreeVariables):
        raise ConfigurationError(
            "psnb.jax: params must be what psnb.jax.variables(strategy, tree, optimizer) returns, "
            f"found {type(params).__name__}"
        )
    found = dict(tables or {})
    for name, table in found.items():
        if not isinstance(table, Embedding):
            raise ConfigurationError(
                f"tables[{name!r}] must be a psnb.Embedding, as strategy.embedding(...) makes, "
                f"found {shown(table)}"
            )
    combiners = _combiners(combiner, found)
    return BatchFunction(function, params, found, ids, combiners, seed, _device_name(device))


def batch_text(batch: Any) -> str:
    """Return what a batch has, for messages."""
    if isinstance(batch, Mapping):
        return f"the fields {sorted(map(str, batch))}"
    return f"no fields: it is a {type(batch).__name__}"


def made_ids(ids: Callable[[Any], Mapping[str, Any]], batch: Any) -> Mapping[str, Any]:
    """Return the ids that a user's function makes of a batch.

    With 64 bits, also of what it computes with jax.numpy: JAX would silently cut them to 32.
    """
    with with_x64(True):
        return ids(batch)


def as_ids(name: str, given: Any) -> Ids:
    """Return ids, or raise InvalidArrayError if they are none."""
    what = f"the ids of feature {name!r}"
    if not isinstance(given, Ragged):
        return integers_of(given, what)
    if given.values.ndim != 1:
        raise InvalidArrayError(
            f"the bags of feature {name!r} must have one id a place, found {shown(given)}"
        )
    values = integers_of(given.values, what)
    return given if values is given.values else Ragged(values, given.offsets)


def _combiners(
    combiner: str | Mapping[str, str], tables: Mapping[str, Embedding]
) -> dict[str, str]:
    given = combiner if isinstance(combiner, Mapping) else dict.fromkeys(tables, combiner)
    found = {name: given.get(name, "mean") for name in tables}
    if unknown := sorted(set(given) - set(tables)):
        raise ConfigurationError(f"combiner has features that are none of the tables: {unknown}")
    if wrong := {name: each for name, each in found.items() if each not in COMBINERS}:
        raise ConfigurationError(f"combiner must be one of {', '.join(COMBINERS)}; found {wrong}")
    return found


def _device_name(device: Any) -> str | None:
    if isinstance(device, jax.Device):
        return f"{device.platform}:{device.id}"
    if device is None or (isinstance(device, str) and device):
        return device
    raise ConfigurationError(
        f"device must be a name such as 'cpu', 'cuda' or 'cuda:1', or a device of JAX; found "
        f"{device!r}"
    )


# BatchForm: what of a batch goes into a compiled program, and how it becomes a batch there again.
#
# A batch is any tree of JAX. What no program can take stays behind, and says so where it is used:
# strings, `Ragged` rows, and integers that do not fit 32 bits, which JAX would truncate silently.


class StayedBehind:
    """Stands in a batch for what a program cannot take; any use of it raises ConfigurationError."""

    def __init__(self, name: str, why: str) -> None:
        self._why = f"batch{name} is not there in a compiled function: {why}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(self._why)

    def _refuse(self, *_: Any) -> Any:
        raise ConfigurationError(self._why)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __array__ = __jax_array__ = __getitem__ = __len__ = __iter__ = __float__ = __bool__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __matmul__ = __rtruediv__ = _refuse


class BatchForm(NamedTuple):
    """The form of a batch without its arrays; equal forms need one program.

    Attributes
    ----------
    tree : PyTreeDef
        The tree.
    behind : tuple of (int, str, str)
        Which leaves stay behind, their names, and why.
    """

    tree: Any
    behind: tuple[tuple[int, str, str], ...]

    def batch(self, arrays: Sequence[Any]) -> Any:
        """Return the batch with these arrays."""
        given = iter(arrays)
        behind = {at: StayedBehind(name, why) for at, name, why in self.behind}
        leaves = [behind[i] if i in behind else next(given) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)


def form_of(batch: Any) -> tuple[BatchForm, list[np.ndarray]]:
    """Return the form of a batch and its arrays."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(batch)
    arrays: list[np.ndarray] = []
    behind = []
    for at, (path, leaf) in enumerate(leaves):
        why, array = _array(leaf)
        if array is None:
            behind.append((at, jax.tree_util.keystr(path), why))
        else:
            arrays.append(array)
    return BatchForm(tree, tuple(behind)), arrays


def _array(leaf: Any) -> tuple[str, np.ndarray | None]:
    """Return what a program can take; or why it cannot."""
    if isinstance(leaf, jax.Array):
        return "", leaf  # type: ignore[return-value]  # a program takes it as it is
    if isinstance(leaf, Ragged):
        return "it is Ragged; rows[...] has the rows of its ids, and pad() makes an array", None
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        return f"it is not an array: {error}", None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        return f"it is of {array.dtype}", None
    if (
        array.dtype.kind in "iu"
        and array.itemsize == 8
        and jax.dtypes.canonicalize_dtype(np.int64) != np.int64
    ):
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            return "its integers do not fit 32 bits; rows[...] has the rows of ids", None
        array = array.astype(np.int32)
    return "", array


# RowLayout: how the rows of a batch get into a compiled program, and from there to its features.
#
# The rows of all tables of one length and dtype are one matrix, so a program has one gather for
# them, and its transpose is one sum by id. `Ragged` ids are bags: their rows are combined in the
# program. The number of rows, and that of the ids in bags, is padded to few sizes.


class LocatedIds(NamedTuple):
    """The ids of a feature.

    Attributes
    ----------
    ids : numpy.ndarray or Ragged
        As the batch has them.
    positions : int64 numpy.ndarray
        That of each among the rows of its table, of the ids' shape; of a Ragged's values.
    """

    ids: Ids
    positions: np.ndarray


class _ShapedFeature(NamedTuple):
    """A feature whose ids have a shape."""

    name: str
    shape: tuple[int, ...]


class _BagFeature(NamedTuple):
    """A feature whose ids are bags."""

    name: str
    number: int


class GroupForm(NamedTuple):
    """Features whose rows have one length and dtype; equal forms need one program."""

    features: tuple[_ShapedFeature, ...]
    bags: tuple[_BagFeature, ...]

    def rows(self, rows: Any, gather: GroupGather) -> dict[str, Any]:
        """Return the rows by feature, in a program."""
        dim = rows.shape[1]
        # Positions are right by construction; with this mode, XLA neither checks nor clips them.
        gathered = rows.at[gather.positions].get(mode="promise_in_bounds")
        found, start = {}, 0
        for name, shape in self.features:
            size = math.prod(shape)
            found[name] = gathered[start : start + size].reshape(*shape, dim)
            start += size
        if self.bags:
            total = sum(bags.number for bags in self.bags)
            # One more for what is left out: padding.
            sums = jax.ops.segment_sum(gathered[start:], gather.bag, total + 1)[:total]
            combined, first = sums * gather.scale[:, None].astype(rows.dtype), 0
            for name, number in self.bags:
                found[name] = combined[first : first + number]
                first += number
        return found


class GroupGather(NamedTuple):
    """What a program needs to get a group's rows to its features.

    Attributes
    ----------
    positions : int32 ``(n,)``
        The position of each id's row: first those of features with a shape, then those in bags.
    bag : int32 ``(m,)``
        Which bag each id in bags belongs to; the number of bags for those that are left out.
    scale : float32 ``(bags,)``
        By what the sum of each bag is multiplied.
    """

    positions: np.ndarray
    bag: np.ndarray
    scale: np.ndarray


class _Group:
    """The features of tables whose rows have one length and dtype."""

    def __init__(self, features: Mapping[Embedding, Sequence[str]]) -> None:
        self.features, self.tables = features, list(features)
        self.rows_sizes, self.bag_sizes = SizeBuckets(), SizeBuckets()


class RowLayout:
    """Brings the rows of a batch into a program, and their gradients back.

    Threads: several may use one.

    Parameters
    ----------
    tables : mapping of str to Embedding
        The table of each feature; several features may have the same.
    combiners : mapping of str to str
        "sum", "mean" or "sqrtn", for features whose ids are bags.
    """

    def __init__(self, tables: Mapping[str, Embedding], combiners: Mapping[str, str]) -> None:
        # One handle for each table, also where a feature came with another one.
        known: dict[object, Embedding] = {}
        self._tables = {
            name: known.setdefault(shards_of(table).key, table) for name, table in tables.items()
        }
        self._combiners = combiners
        kinds: dict[tuple[str, int], dict[Embedding, list[str]]] = {}
        for name, table in self._tables.items():
            kind = kinds.setdefault((table.dtype.name, table.dim), {})
            kind.setdefault(table, []).append(name)
        self._groups = [_Group(features) for features in kinds.values()]

    def locate(self, ids: Mapping[str, Ids], rows: BatchRows) -> dict[str, LocatedIds]:
        """Find the position of each id among the rows of its table, by feature."""
        found: dict[str, LocatedIds] = {}
        for group in self._groups:
            for table, names in group.features.items():
                positions = rows.locate(table, *(_flat(ids[name]) for name in names))
                for name, each in zip(names, positions, strict=True):
                    found[name] = LocatedIds(ids[name], each)
        return found

    def form(
        self,
        located: Mapping[str, LocatedIds],
        rows: BatchRows,
        fetched: Mapping[Embedding, np.ndarray],
    ) -> tuple[tuple[GroupForm, ...], list[np.ndarray], list[GroupGather]]:
        """Return the form of the groups, the rows of each, and what a program needs to use them."""
        forms, matrices, gathers = [], [], []
        for group in self._groups:
            starts, matrix = _joined(group, fetched)
            own = {name: each for name, each in located.items() if id(self._tables[name]) in starts}
            bags = {name: each for name, each in own.items() if isinstance(each.ids, Ragged)}
            shaped = {name: each for name, each in own.items() if name not in bags}
            parts = [
                each.positions.reshape(-1) + starts[id(self._tables[name])]
                for name, each in (*shaped.items(), *bags.items())
            ]
            bag, scale = self._bags(bags, rows)
            padding = 0
            if bags:
                padding = group.bag_sizes.at_least(bag.size) - bag.size
                bag = np.pad(bag, (0, padding), constant_values=scale.size)
            forms.append(
                GroupForm(
                    tuple(_ShapedFeature(n, each.positions.shape) for n, each in shaped.items()),
                    tuple(_BagFeature(name, len(each.ids)) for name, each in bags.items()),
                )
            )
            matrices.append(matrix)
            gathers.append(
                GroupGather(
                    np.concatenate(
                        [*parts, np.zeros(padding, np.int64)], dtype=np.int32, casting="same_kind"
                    ),
                    bag,
                    scale,
                )
            )
        return tuple(forms), matrices, gathers

    def gradients(
        self, fetched: Mapping[Embedding, np.ndarray], matrices: Sequence[Any]
    ) -> dict[Handle, np.ndarray]:
        """Return the gradients of each table's rows from those of the groups."""
        found: dict[Handle, np.ndarray] = {}
        for group, matrix in zip(self._groups, matrices, strict=True):
            start = 0
            for table in group.tables:
                if table in fetched:
                    count = len(fetched[table])
                    found[table] = np.asarray(matrix, table.dtype)[start : start + count]
                    start += count
        return found

    def _bags(
        self, features: Mapping[str, LocatedIds], rows: BatchRows
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bag of each id in bags, and what each bag's sum is multiplied by."""
        bags, scales, first = [], [], 0
        for name, (ids, positions) in features.items():
            assert isinstance(ids, Ragged)
            table, lengths, count = self._tables[name], ids.lengths, len(ids)
            bag = np.repeat(np.arange(first, first + count, dtype=np.int32), lengths)
            if table.padding_idx is not None:
                # Its row is of zeros, and it is not counted, as in `Embedding.lookup_bags`.
                real = positions.reshape(-1) != rows.find(table, table.padding_idx)
                lengths = np.bincount(bag[real] - first, minlength=count)
            bags.append(bag)
            scales.append(_scale(self._combiners[name], lengths))
            first += count
        if not bags:
            return np.empty(0, np.int32), np.empty(0, np.float32)
        return np.concatenate(bags), np.concatenate(scales)


def _flat(ids: Ids) -> np.ndarray:
    return ids.values if isinstance(ids, Ragged) else ids


def _joined(
    group: _Group, fetched: Mapping[Embedding, np.ndarray]
) -> tuple[dict[int, int], np.ndarray]:
    """Return where each table's rows start in the matrix of a group, and the matrix."""
    starts, count = {}, 0
    for table in group.tables:
        starts[id(table)] = count
        count += len(fetched[table]) if table in fetched else 0
    first = group.tables[0]
    # What is padding is never read.
    matrix = np.empty((group.rows_sizes.at_least(count), first.dim), first.dtype)
    for table in group.tables:
        if table in fetched:
            start = starts[id(table)]
            matrix[start : start + len(fetched[table])] = fetched[table]
    return starts, matrix


def _scale(combiner: str, lengths: np.ndarray) -> np.ndarray:
    if combiner == "sum":
        return np.ones(lengths.size, np.float32)
    divisors = lengths if combiner == "mean" else np.sqrt(lengths)
    inverse = np.zeros(lengths.size, np.float32)
    np.divide(1.0, divisors, out=inverse, where=lengths > 0, casting="same_kind")
    return inverse
