"""BatchFunction: a user's function of parameters, rows and a batch, with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from psnb._src.client.embedding import Embedding
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.jax_program import COMBINERS, with_x64
from psnb._src.models.flat_variables import FlatVariables
from psnb._src.models.jax.row_layout import Ids
from psnb._src.models.jax.variables import TreeVariables
from psnb._src.utils.arrays import integers_of
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError


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

    With 64 bits, also in computations with jax.numpy: JAX would cut them to 32 without a warning.
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
