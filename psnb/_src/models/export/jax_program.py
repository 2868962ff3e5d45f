"""JaxComputation: an exported JAX program, and how its arguments are made of a batch.

Threads: several may use one. XLA compiles a program once for each number of examples.

XLA turns some of the calls that `jax.export` guarantees into operations of its own, and checks
these. The routines of LAPACK and cuSOLVER get addresses, and take the sizes of their results from
the program: one with results that are too small writes outside of them. So their sizes are checked
here, and must be known: sizes that depend on the batch are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.experimental
import numpy as np
from jax import export as jax_export
from msgspec import Struct, structs

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.manifest import ModelManifest, fits
from psnb._src.models.export.model_state import Computation
from psnb._src.models.export.tables import StoredTable
from psnb._src.utils.sealed_json import require, typed

_NAMED = re.compile(
    r"custom_call\s*@(?:\"([^\"]*)\"|([\w.$-]+))|call_target_name\s*=\s*\"([^\"]*)\""
)
_OF_XLA = re.compile(
    r"(mhlo|chlo)\.\w+|stablehlo\.dynamic_\w+|ApproxTopK|shape_assertion"
    r"|Sharding|SPMD\w+Shape|annotate_device_placement",
    re.ASCII,
)
"""Targets that XLA checks. Others are refused: they call addresses in the process that a program
comes from (callbacks), give uninitialized memory (``AllocateBuffer``), or take sizes from their
arguments."""

_ROUTINE = re.compile(r"lapack_([sdcz])(\w+)_ffi|cusolver_(\w+)_ffi|cu_(\w+)", re.ASCII)
_CALL = re.compile(
    r"custom_call @(\w+)\([^()\n]*\) \{([^\n]*)\} : \(([^()\n]*)\) -> \(?(tensor<[^()\n]*>)",
    re.ASCII,
)
_CONFIG = re.compile(r"backend_config = \{([^{}]*)\}")
_ARRAY = re.compile(r"tensor<((?:\d+x)*)(\w+|complex<\w+>)>", re.ASCII)
_KINDS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
_ALL, _SOME, _NONE, _LEFT, _RIGHT = map(ord, "ASNLR")


class _Array(NamedTuple):
    shape: tuple[int, ...]
    kind: str


def foreign_calls(text: str) -> list[str]:
    """Return what a program in StableHLO calls that no exported model may call."""
    named = Counter("".join(found) for found in _NAMED.findall(text))
    checked = Counter(_routines(re.sub(r'"[^"]*"', '""', text)))
    return [
        name
        for name, count in named.items()
        if not _OF_XLA.fullmatch(name) and checked[name] != count
    ]


def _routines(text: str) -> Iterator[str]:
    """Yield the names of the calls of routines whose arguments and results fit each other."""
    for name, options, given, made in _CALL.findall(text):
        try:
            takes, gives = _arrays(given), _arrays(made)
            (config,) = _CONFIG.findall(options)
            pairs = (each.partition(" = ")[::2] for each in config.split(", ") if each)
            plain = ((option, value.partition(" : ")[0]) for option, value in pairs)
            numbers = {option: int(value) for option, value in plain if value.isdecimal()}
            if (takes, gives) == _expected(name, takes, gives, numbers):
                yield name
        except (ValueError, IndexError, KeyError):  # of other numbers of arrays or axes
            continue


def _arrays(text: str) -> list[_Array]:
    found = [_ARRAY.fullmatch(each.strip()) for each in text.split(",")]
    if None in found:
        raise ValueError
    return [_Array(tuple(map(int, each[1].split("x")[:-1])), each[2]) for each in found if each]


def _expected(
    name: str, takes: list[_Array], gives: list[_Array], options: dict[str, int]
) -> tuple[list[_Array], list[_Array]] | None:
    """Return what a routine must take and give, if it is known and its first array is good."""
    match = _ROUTINE.fullmatch(name)
    if match is None:
        return None
    if match[4] == "threefry2x32_ffi":
        return [takes[0]._replace(kind="ui32")] * 4, [takes[0]._replace(kind="ui32")] * 2
    if match[4] == "lu_pivots_to_permutation":
        (*batch, count), (*_, size) = takes[0].shape, gives[0].shape
        good = count <= size
        return ([_Array((*batch, count), "i32")], [_Array((*batch, size), "i32")]) if good else None
    kind = _KINDS[match[1]] if match[1] else takes[0].kind
    *batch, m, n = takes[0].shape
    k = min(m, n)

    def of(*shape: int, kind: str = kind) -> _Array:
        return _Array((*batch, *shape), kind)

    whole, info = of(m, n), of(kind="i32")
    real = kind.removeprefix("complex<").removesuffix(">")
    match match[2] or match[3]:
        case "getrf":
            return [whole], [whole, of(k, kind="i32"), info]
        case "geqrf":
            return [whole], [whole, of(k)]
        case "orgqr" | "ungqr" if (count := takes[1].shape[-1]) <= n <= m:
            return [whole, of(count)], [whole]
        case "potrf" if m == n:
            return [whole], [whole, info]
        case "syevd" | "heevd" if m == n:
            return [whole], [whole, of(n, kind=real), info]
        case "trsm" if m == n and options["side"] in (_LEFT, _RIGHT):
            *_, p, q = takes[1].shape
            good = m == (p if options["side"] == _LEFT else q)
            return ([whole, of(p, q)], [of(p, q)]) if good else None
        case "gesdd" if options["mode"] in (_ALL, _NONE):
            return [whole], [whole, of(k, kind=real), of(m, m), of(n, n), info]
        case "gesdd" if options["mode"] == _SOME:
            return [whole], [whole, of(k, kind=real), of(m, k), of(k, n), info]
        case "gesvdj":
            return [whole], [whole, of(k, kind=real), of(m, m), of(n, n), info]
    return None


with_x64: Callable[[bool], Any] = (
    jax if hasattr(jax, "enable_x64") else jax.experimental
).enable_x64
"""Sets for a block of code whether JAX has 64 bits; experimental before JAX 0.8."""

PROGRAM, IDS = "program.jax", "ids.jax"
"""The files of the model, and of the computation of ids, if they are not fields of the batch."""

COMBINERS = ("sum", "mean", "sqrtn")
"""How rows of bags become one."""


class JaxComputation(Computation):
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
        used = (what for kind, what in self._arguments if kind == "dense")
        super().__init__(used, dense, jax.device_put)

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
                if isinstance(part, Ragged):
                    rows = tables[table].lookup_bags(part, combiner or "mean")
                else:
                    rows = tables[table].lookup(part)
                given.append(rows.astype(dtype, copy=False))
            elif kind == "feed":
                given.append(what.taken(feeds[what.name]))
            else:
                given.append(self._dense[what])
        with with_x64(self._x64):
            return [np.asarray(each) for each in self._run(*given)]


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
    for name, (table, feed, combiner) in features.items():
        require(table in tables, f"feature {name!r:.80} has no table")
        known = name in computes if feed is None else feed in feeds
        require(known, f"feature {name!r:.80} has no ids")
        bags = feed is not None and feeds[feed].ragged
        good = combiner in COMBINERS if bags else combiner is None
        require(good, f"feature {name!r:.80}: its combiner is {combiner!r:.80}")
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
            (table, feed, combiner), found = features[name], name
            of_ids = aval.shape[:-1] if feed is None else feeds[feed].shape
            shape = (*(of_ids if combiner is None else (None,)), tables[table].dim)
        else:
            good = name in feeds and not feeds[name].ragged
            require(good, f"there is no feed {name!r:.80} of one shape")
            shape, found = feeds[name].shape, structs.replace(feeds[name], dtype=aval.dtype.name)
        good = fits(shape, [_size(size) for size in aval.shape])
        require(good, f"its program takes {aval} for {kind} {name!r:.80} of shape {shape}")
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


def _size(size: Any) -> int | None:
    return size if isinstance(size, int) else None
