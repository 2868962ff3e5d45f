"""BatchFunction: a user's function of parameters, rows and a batch, with its arguments.

A batch is any tree of JAX. Its arrays go into a compiled program, where it becomes a batch again
(`BatchForm`). Leaves that no program can take stay behind, and raise where they are used: strings,
`Ragged` rows, and integers that do not fit 32 bits, which JAX would truncate silently.

Functions travel with closures. Of those that came to this process equal ones are one, with the
programs that it has compiled: so a step that is an argument of a closure, and arrives with each, is
compiled once a worker. They are equal if their pickles are: functions by their code and what they
refer to. Threads: any may load one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.jax_program import COMBINERS, with_x64
from psnb._src.models.flat_variables import FlatVariables, Members
from psnb._src.models.jax.row_layout import Ids
from psnb._src.models.jax.variables import TreeVariables, flat_of
from psnb._src.protocol.packing import dumps
from psnb._src.utils.arrays import found_in, frame_text, integers_of
from psnb._src.utils.text import shown, with_article
from psnb._src.worker.context import current_context
from psnb.errors import ConfigurationError, InvalidArrayError, SerializationError

KEPT = 16
"""How many steps a process keeps; one that comes when there are more pushes out the one that was
not used for longest, which is compiled again if it returns."""

_lock = threading.Lock()  # guards the kept objects, for a moment each

_kept: OrderedDict[bytes, Any] = OrderedDict()


def travelling(kind: Callable[..., Any], *made_of: Any) -> tuple[Any, ...]:
    """Return what the ``__reduce__`` of a step returns that is ``kind(*made_of)``."""
    try:
        packed = dumps(made_of, with_article(kind.__qualname__))
    except SerializationError as error:
        # Unchanged: the pickler of the step names the culprit, and where it is in the closure.
        raise error.__cause__ or error from None
    packed = kind.__qualname__.encode() + packed  # `forward` and `stage` may be made of the same
    return _arrived, (hashlib.blake2b(packed, digest_size=16).digest(), kind, *made_of)


def _arrived(digest: bytes, kind: Callable[..., Any], *made_of: Any) -> Any:
    if current_context() is not None:
        # A closure waits for its step: another thread would only cost the way there and back.
        # It has no effect, and does no harm, if JAX has computed before.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    with _lock:
        if digest not in _kept:
            _kept[digest] = kind(*made_of)
        _kept.move_to_end(digest)
        found = _kept[digest]
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found


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
    __pow__ = __rpow__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __rmatmul__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __invert__ = __abs__ = __int__ = _refuse
    __eq__ = __ne__ = __contains__ = __index__ = __lshift__ = __rshift__ = _refuse
    __hash__ = object.__hash__


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
        given = iter(arrays)
        behind = {at: StayedBehind(name, why) for at, name, why in self.behind}
        leaves = [behind[i] if i in behind else next(given) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)


def form_of(batch: Any) -> tuple[BatchForm, list[np.ndarray]]:
    """Return the form of a batch and its arrays."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(batch, is_leaf=_is_list)
    arrays: list[np.ndarray] = []
    behind = []
    for at, (path, leaf) in enumerate(leaves):
        why, array = _array(leaf)
        if array is None:
            behind.append((at, jax.tree_util.keystr(path), why))
        else:
            arrays.append(array)
    return BatchForm(tree, tuple(behind)), arrays


def _is_list(node: Any) -> bool:
    """Return whether something is a column in a list, and no tree of arrays."""
    first = node
    while isinstance(first, list) and first:
        first = first[0]
    return first is not node and isinstance(first, int | float | str | bytes | np.generic | None)


def _array(leaf: Any) -> tuple[str, np.ndarray | None]:
    """Return what a program can take; or why it cannot."""
    if isinstance(leaf, jax.Array):
        return "", leaf  # type: ignore[return-value]  # a program takes it as it is
    if isinstance(leaf, Ragged):
        return "it is Ragged; rows[...] has the rows of its ids, and pad() makes an array", None
    if why := frame_text(leaf):
        return why, None
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        return f"it is not an array: {error}", None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        return f"it has {found_in(array)}", None
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


@dataclass(frozen=True, eq=False)
class BatchFunction:
    """A function of a model for one batch; travels with closures.

    Attributes
    ----------
    function : callable
        ``function(params, rows, batch)``, with ``key`` if there is a seed; pure.
    params : TreeVariables
        Its parameters; without any, of a tree that is None.
    tables : dict of str to Embedding
        The table of each feature.
    ids : callable or None
        Takes a batch, returns the ids of each feature; None for ``batch[feature]``.
    combiners : dict of str to str
        How the rows of a bag are combined, by feature.
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
        """The function's name."""
        found: str = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return found

    @property
    def learning(self) -> list[Members]:
        """The parameters with gradients, by variable."""
        flat = flat_of(self.params)
        return flat.members([n for n in flat.places if self.learns is None or self.learns(n)])

    def ids_of(self, batch: Any) -> dict[str, Ids]:
        """Return the ids of each feature.

        Raises
        ------
        ConfigurationError
            If the batch lacks a feature, or ``ids`` does.
        InvalidArrayError
            If they are not integers.
        """
        return {name: as_ids(name, each) for name, each in self.made_ids(batch).items()}

    def made_ids(self, batch: Any) -> dict[str, Any]:
        """Return the ids of each feature as they are in the batch, or as the user makes them.

        With 64 bits, also in computations with jax.numpy: JAX would cut them to 32 without a
        warning.
        """
        names = list(self.tables)
        try:
            if self.ids is None:
                found: Mapping[str, Any] = {name: batch[name] for name in names}
            else:
                with with_x64(True):
                    found = self.ids(batch)
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"the ids of a batch could not be found ({type(error).__name__}: {error}): the "
                f"batch has {batch_text(batch)}, and tables are there for {names}. ids= takes a "
                "function from a batch to a dict of ids, one for each table"
            ) from error
        has = list(found) if isinstance(found, Mapping) else []
        if missing := [name for name in names if name not in has]:
            raise ConfigurationError(
                f"ids(batch) must return the ids of {names}, found "
                f"{has or type(found).__name__}; missing are {missing}"
            )
        return {name: found[name] for name in names}


class Applied:
    """A function of batches that travels with closures, and is named as the user's.

    Parameters
    ----------
    of : BatchFunction
        The user's function, with what it is applied to.
    what : str
        What it is of that.
    """

    def __init__(self, of: BatchFunction, what: str) -> None:
        # So psnb names its closures, and notices when what the function refers to has changed.
        self._of, self.__wrapped__, self.__qualname__ = of, of.function, f"{what} of {of.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return travelling(type(self), self._of)  # what is compiled stays


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
    if not isinstance(tables, Mapping | None):
        raise ConfigurationError(
            f"psnb.jax: tables must be a dict, from features to embeddings; found {shown(tables)}"
        )
    found = dict(tables or {})
    for name, table in found.items():
        if not isinstance(table, Embedding):
            raise ConfigurationError(
                f"tables[{name!r}] must be a psnb.Embedding, as strategy.embedding(...) makes, "
                f"found {shown(table)}"
            )
    given = combiner if isinstance(combiner, Mapping) else dict.fromkeys(found, combiner)
    combiners = {name: given.get(name, "mean") for name in found}
    if unknown := sorted(set(given) - set(found)):
        raise ConfigurationError(f"combiner has features that are none of the tables: {unknown}")
    if wrong := {name: each for name, each in combiners.items() if each not in COMBINERS}:
        raise ConfigurationError(f"combiner must be one of {', '.join(COMBINERS)}; found {wrong}")
    if isinstance(device, jax.Device):
        device = f"{device.platform}:{device.id}"
    elif device is not None and (not isinstance(device, str) or not device):
        raise ConfigurationError(
            "device must be a name such as 'cpu', 'cuda' or 'cuda:1', or a device of JAX; found "
            f"{device!r}"
        )
    return BatchFunction(function, params, found, ids, combiners, seed, device)


def batch_text(batch: Any) -> str:
    """Return what a batch has, for messages."""
    if isinstance(batch, Mapping):
        return f"the fields {sorted(map(str, batch))}"
    return f"no fields: it is a {type(batch).__name__}"


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
