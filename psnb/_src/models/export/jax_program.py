"""JaxComputation: an exported JAX program, and how its arguments are made of a batch.

Threads: several may use one. XLA compiles a program once for each number of examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.experimental
import numpy as np
from jax import export as jax_export
from msgspec import Struct, structs

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.jax_calls import foreign_calls
from psnb._src.models.export.manifest import ModelFeed, ModelManifest
from psnb._src.models.export.tables import StoredTable
from psnb._src.utils.sealed_json import require, typed

with_x64: Callable[[bool], Any] = (
    jax if hasattr(jax, "enable_x64") else jax.experimental
).enable_x64
"""Sets for a block of code whether JAX has 64 bits; experimental before JAX 0.8."""

PROGRAM, IDS = "program.jax", "ids.jax"
"""The files of the model, and of the computation of ids, if they are not fields of the batch."""

COMBINERS = ("sum", "mean", "sqrtn")
"""How rows of bags become one."""


class JaxComputation:
    """A program that was loaded.

    Parameters
    ----------
    program : jax.export.Exported
        The model.
    arguments : sequence of (str, object)
        For each of its arguments the kind; and its name if it is ``dense``, the `ModelFeed` if
        it is ``feed``, the feature if it is ``rows``.
    dense : mapping of str to numpy.ndarray
        The dense parameters.
    features : mapping of str to tuple
        The table, the feed and the combiner of each feature; the latter may be None.
    computed : tuple
        The program that computes ids, the feeds that it takes, the features that it returns.
    x64 : bool
        Whether JAX had 64 bits when the program was made.
    """

    def __init__(
        self,
        program: jax_export.Exported,
        arguments: Sequence[tuple[str, Any]],
        dense: Mapping[str, np.ndarray],
        features: Mapping[str, tuple[str, str | None, str | None]],
        computed: tuple[jax_export.Exported | None, Sequence[str], Sequence[str]],
        x64: bool,
    ) -> None:
        self._arguments, self._features, self._x64 = tuple(arguments), dict(features), x64
        self._run = jax.jit(program.call)
        self._dtypes = [aval.dtype for aval in program.in_avals]
        ids, self._takes, self._computes = computed
        self._ids = None if ids is None else jax.jit(ids.call)
        self._dense = self._placed(dense)

    def __call__(
        self, feeds: Mapping[str, np.ndarray | Ragged], tables: Mapping[str, StoredTable]
    ) -> list[np.ndarray]:
        """Return the arrays of all fetches."""
        ids = dict(feeds)
        if self._ids is not None:
            with with_x64(True):
                found = self._ids(*(feeds[name] for name in self._takes))
            computed = dict(zip(self._computes, map(np.asarray, found), strict=True))
        given = []
        for (kind, what), dtype in zip(self._arguments, self._dtypes, strict=True):
            if kind == "rows":
                table, feed, combiner = self._features[what]
                part = computed[what] if feed is None else ids[feed]
                stored = tables[table]
                rows = (
                    stored.lookup_bags(part, combiner or "mean")
                    if isinstance(part, Ragged)
                    else stored.lookup(part)
                )
                given.append(rows.astype(dtype, copy=False))
            elif kind == "feed":
                given.append(what.taken(feeds[what.name]))
            else:
                given.append(self._dense[what])
        with with_x64(self._x64):
            return [np.asarray(each) for each in self._run(*given)]

    def with_dense(self, dense: Mapping[str, np.ndarray]) -> JaxComputation:
        """Return the same with other dense parameters; compiled programs are shared."""
        other = copy.copy(self)
        other._dense = self._placed(dense)
        return other

    def _placed(self, dense: Mapping[str, np.ndarray]) -> dict[str, Any]:
        used = (what for kind, what in self._arguments if kind == "dense")
        return {name: jax.device_put(dense[name]) for name in used}


class _Feature(Struct, forbid_unknown_fields=True):
    table: str
    feed: str | None
    combiner: str | None


class _Detail(Struct, forbid_unknown_fields=True):
    arguments: list[tuple[Literal["dense", "rows", "feed"], str]]
    features: dict[str, _Feature]
    computed: tuple[list[str], list[str]]
    x64: bool


def load(
    manifest: ModelManifest,
    programs: Mapping[str, bytes],
    dense: Mapping[str, np.ndarray],
    tables: Mapping[str, StoredTable],
) -> JaxComputation:
    """Return the computation of a model.

    Raises
    ------
    ValueError
        If its parts do not fit each other.
    """
    detail, feeds = typed(manifest.detail, _Detail), {feed.name: feed for feed in manifest.feeds}
    takes, computes = detail.computed
    features = {name: structs.astuple(each) for name, each in detail.features.items()}
    _check_features(features, feeds, tables, computes)
    program = _program(programs, PROGRAM)
    arguments = detail.arguments
    good = len(arguments) == len(program.in_avals)
    require(good, f"its program takes {len(program.in_avals)} arguments, found others")
    require(
        [list(fetch.shape) for fetch in manifest.fetches]
        == [[_size(size) for size in aval.shape] for aval in program.out_avals],
        "its program has other outputs than its fetches",
    )
    made: list[tuple[str, Any]] = []
    for (kind, name), aval in zip(arguments, program.in_avals, strict=True):
        found: Any = None
        if kind == "dense":
            require(name in dense, f"there is no dense parameter {name!r:.80}")
            array, found = dense[name], name
            require(array.dtype == aval.dtype, f"dense parameter {name!r:.80} is of {array.dtype}")
            shape: tuple[int | None, ...] = array.shape
        elif kind == "rows":
            require(name in features, f"there is no feature {name!r:.80}")
            table, feed, combiner = features[name]
            shape, found = (*aval.shape[:-1], tables[table].dim), name
            if feed is not None:
                bags = combiner is not None
                shape = (*((None,) if bags else feeds[feed].shape), tables[table].dim)
        else:
            good = name in feeds and not feeds[name].ragged
            require(good, f"there is no feed {name!r:.80} of one shape")
            shape, found = feeds[name].shape, structs.replace(feeds[name], dtype=aval.dtype.name)
        fits = len(shape) == len(aval.shape) and all(
            _size(size) in (other, None) for size, other in zip(aval.shape, shape, strict=True)
        )
        require(fits, f"its program takes {aval} for {kind} {name!r:.80} of shape {shape}")
        made.append((kind, found))
    ids = None
    if computes:
        ids = _program(programs, IDS)
        good = len(ids.in_avals) == len(takes) and len(ids.out_avals) == len(computes)
        require(good and all(name in feeds for name in takes), "its ids are of other feeds")
    return JaxComputation(program, made, dense, features, (ids, takes, computes), detail.x64)


def _program(programs: Mapping[str, bytes], name: str) -> jax_export.Exported:
    require(name in programs, f"{name} is missing")
    try:
        program = jax_export.deserialize(bytearray(programs[name]))
        text = program.mlir_module()
    except ModuleNotFoundError:  # of flatbuffers, which psnb[jax] brings
        raise
    except Exception as error:  # of the parsers of two libraries
        raise ValueError(f"{name} is not a program of JAX: {error}") from error
    for target in foreign_calls(text):
        raise ValueError(f"{name} calls {target!r:.80}, which is not an operation of a model")
    return program


def _check_features(
    given: Mapping[str, tuple[str, str | None, str | None]],
    feeds: Mapping[str, ModelFeed],
    tables: Mapping[str, StoredTable],
    computed: Sequence[str],
) -> None:
    for name, (table, feed, combiner) in given.items():
        require(table in tables, f"feature {name!r:.80} has no table")
        known = name in computed if feed is None else feed in feeds
        require(known, f"feature {name!r:.80} has no ids")
        bags = feed is not None and feeds[feed].ragged
        good = combiner in COMBINERS if bags else combiner is None
        require(good, f"feature {name!r:.80}: its combiner is {combiner!r:.80}")


def _size(size: Any) -> int | None:
    return size if isinstance(size, int) else None
