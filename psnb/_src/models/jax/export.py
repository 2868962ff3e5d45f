"""Exports a forward pass in JAX, which `models/export/jax_program.py` runs without training code.

The program takes dense parameters, the rows of each feature and the fields of a batch, whose number
of examples is a symbol: so one program is for batches of any size, and gives for each exactly what
the function gives. (Padding to few sizes would change what a function makes of a batch as a whole.)
XLA compiles it once for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from psnb._src.client.embedding import Embedding
from psnb._src.data.ragged import Ragged
from psnb._src.models.export.exported import Exported, returned, tracing
from psnb._src.models.export.jax_calls import foreign_calls
from psnb._src.models.export.jax_program import IDS, PROGRAM, with_x64
from psnb._src.models.export.manifest import ModelFeed
from psnb._src.models.jax.batch import BatchFunction, as_ids, made_ids
from psnb._src.models.jax.batch_form import form_of
from psnb._src.models.table_rows import table_source
from psnb.errors import ConfigurationError

_PLATFORMS = ("cpu", "cuda")


def exported(of: BatchFunction, example: Any) -> Exported:
    """Return what is written of a function, by an example of its batches.

    Raises
    ------
    ConfigurationError
        If it does not trace for batches of any size, or its ids do not.
    """
    batch = _Example(example, of.name)
    params, tables = of.params, of.tables
    features = batch.features(tables, of.ids)
    leaves = params.read_leaves()
    key = {} if of.seed is None else {"key": jax.random.fold_in(jax.random.key(of.seed), 0)}

    def computed(dense: dict[str, Any], rows: dict[str, Any], fields: dict[str, Any]) -> list[Any]:
        found = of.function(params.tree_of(dense), rows, batch.filled(fields), **key)
        flat, structure = jax.tree.flatten(found)
        outputs.append(jax.tree.unflatten(structure, range(len(flat))))
        return flat

    outputs: list[Any] = []
    forms = {("dense", name): _form(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    for name, table in tables.items():
        forms["rows", name] = _form((*features.shapes[name], table.dim), table.dtype)
    forms |= {("feed", name): form for name, form in zip(batch.names, batch.forms, strict=True)}
    program, used = _exported(computed, forms, f"function {of.name!r}")
    feeds = [name for kind, name in used if kind == "feed"]
    needed = [name for name in batch.order if name in {*feeds, *features.feeds}]
    form, fetches = returned(outputs[-1], ((e.dtype.name, e.shape) for e in program.out_avals))
    return Exported(
        "jax",
        [batch.feed(name, cut=name in feeds) for name in needed],
        fetches,
        form,
        {name: leaves[name] for kind, name in used if kind == "dense"},
        {table.name: table_source(table) for table in tables.values()},
        {PROGRAM: _serialized(program), **features.program},
        {
            "arguments": [list(each) for each in used],
            "features": {
                name: {
                    "table": tables[name].name,
                    "feed": features.sources.get(name),
                    "combiner": of.combiners[name] if name in features.bags else None,
                }
                for name in tables
            },
            "computed": [list(features.computed_of), list(features.computed)],
            "x64": bool(jax.config.read("jax_enable_x64")),
        },
        {"jax": jax.__version__},
        params.sources(),
    )


class _FeatureSources:
    """Where the ids of each feature come from.

    Attributes
    ----------
    sources : dict
        The feed of ids that are one.
    shapes : dict
        Their shapes, with a symbol; for bags, the shape of the rows that they become.
    bags : set
        The features whose ids are bags.
    computed, computed_of : list
        The features whose ids are computed, and of which feeds.
    program : dict
        The file of their computation, if any are.
    """

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.shapes: dict[str, tuple[Any, ...]] = {}
        self.bags: set[str] = set()
        self.computed: list[str] = []
        self.computed_of: list[str] = []
        self.program: dict[str, bytes] = {}

    @property
    def feeds(self) -> set[str]:
        """The feeds that ids need."""
        return {*self.sources.values(), *self.computed_of}


class _Example:
    """An example of a batch, and how batches of any size look.

    Parameters
    ----------
    example : pytree
        A batch.
    what : str
        The function's name, for messages.
    """

    def __init__(self, example: Any, what: str) -> None:
        found = jax.tree_util.tree_flatten_with_path(example)[0]
        self._leaves = {_named(path): leaf for path, leaf in found}
        if example is None or not self._leaves:
            raise ConfigurationError(
                f"psnb.export of {what!r} needs example=, a batch: it has the names, shapes and "
                "dtypes of what the model is fed"
            )
        self._example, self.order = example, list(self._leaves)
        self._form, arrays = form_of(example)
        behind = {at for at, _, _ in self._form.behind}
        self.names = [name for at, name in enumerate(self.order) if at not in behind]
        arrays = [np.asarray(each) for each in arrays]
        sizes = {name: len(leaf) for name, leaf in self._leaves.items() if np.shape(leaf)}
        if len(set(sizes.values())) > 1:
            raise ConfigurationError(
                f"psnb.export: the arrays of example= must have one example in each row, and their "
                f"lengths differ: {sizes}"
            )
        (self._size,) = jax_export.symbolic_shape("batch")
        self.forms = [_form(self._any_size(each.shape), each.dtype) for each in arrays]

    def filled(self, fields: Mapping[str, Any]) -> Any:
        """Return a batch with other arrays."""
        return self._form.batch([fields[name] for name in self.names])

    def feed(self, name: str, *, cut: bool) -> ModelFeed:
        """Return a feed; ``cut`` says that the program takes it in the dtype that JAX has."""
        leaf = self._leaves[name]
        if isinstance(leaf, Ragged):
            return ModelFeed(name, leaf.dtype.name, (None, *leaf.values.shape[1:]), "ragged")
        array = np.asarray(leaf)
        dtype = array.dtype
        if cut and dtype.kind == "f":
            dtype = self.forms[self.names.index(name)].dtype
        return ModelFeed(name, dtype.name, (None, *array.shape[1:]) if array.ndim else ())

    def features(
        self, tables: Mapping[str, Embedding], ids: Callable[[Any], Mapping[str, Any]] | None
    ) -> _FeatureSources:
        """Return where ids come from: fields of the batch as they are, or what JAX traces."""
        found = _FeatureSources()
        try:
            made = self._example if ids is None else made_ids(ids, self._example)
            made = {name: made[name] for name in tables}
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigurationError(
                f"the ids of example= could not be found ({type(error).__name__}: {error})"
            ) from error
        owners = {id(leaf): name for name, leaf in self._leaves.items()}
        for name in tables:
            given = made[name]
            if isinstance(given, Ragged):
                if id(given) not in owners:
                    raise ConfigurationError(
                        f"the ids of feature {name!r} are Ragged and are made in ids(batch), which "
                        "cannot be exported: make them a field of the batch, in Dataset.map"
                    )
                found.bags.add(name)
                found.shapes[name] = (self._size,)
            if id(given) in owners:
                found.sources[name] = owners[id(given)]
                found.shapes.setdefault(name, self._any_size(np.shape(given)))
            as_ids(name, given)
        found.computed = [name for name in tables if name not in found.sources]
        if found.computed and ids is not None:
            self._trace(found, ids, made)
        return found

    def _trace(
        self,
        found: _FeatureSources,
        ids: Callable[[Any], Mapping[str, Any]],
        made: Mapping[str, Any],
    ) -> None:
        """Export what computes ids."""
        with with_x64(True):  # with integers as wide as they are
            form, plain = form_of(self._example)
        behind = {at for at, _, _ in form.behind}
        names = [name for at, name in enumerate(self.order) if at not in behind]
        arrays = [np.asarray(each) for each in plain]

        def computed(_: Any, __: Any, fields: dict[str, Any]) -> list[Any]:
            given = ids(form.batch([fields[name] for name in names]))
            return [jax.numpy.asarray(given[name]) for name in found.computed]

        what = (
            f"ids(batch) of {', '.join(map(repr, found.computed))}, which are to be fields of the "
            "batch as they are, or computed with operators and jax.numpy,"
        )
        with with_x64(True):
            program, kept = _exported(
                computed,
                {
                    ("feed", name): _form(self._any_size(array.shape), array.dtype)
                    for name, array in zip(names, arrays, strict=True)
                },
                what,
            )
            given = dict(zip(names, arrays, strict=True))
            again = jax.jit(program.call)(*(given[name] for _, name in kept))
            for name, array in zip(found.computed, again, strict=True):
                if not np.array_equal(np.asarray(array), np.asarray(made[name])):
                    raise ConfigurationError(
                        f"psnb.export: {what} give other ids for {name!r} when JAX traces them"
                    )
        found.computed_of = [name for _, name in kept]
        found.shapes |= {
            name: aval.shape for name, aval in zip(found.computed, program.out_avals, strict=True)
        }
        found.program = {IDS: _serialized(program)}

    def _any_size(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        return (self._size, *shape[1:]) if shape else ()


_Argument = tuple[str, str]
"""Its kind (dense, rows or feed) and its name."""


def _exported(
    function: Callable[..., Any], forms: Mapping[_Argument, jax.ShapeDtypeStruct], what: str
) -> tuple[jax_export.Exported, list[_Argument]]:
    """Return a program, and its arguments: the ones that the function uses."""

    def of(chosen: Sequence[_Argument]) -> Callable[..., Any]:
        def program(*arrays: Any) -> Any:
            given: dict[str, dict[str, Any]] = {"dense": {}, "rows": {}, "feed": {}}
            for (kind, name), form in forms.items():
                # A place in the order; nothing depends on arguments that are not chosen.
                known = (kind, name) in chosen
                given[kind][name] = None if known else jax.numpy.zeros(form.shape, form.dtype)
            for (kind, name), array in zip(chosen, arrays, strict=True):
                given[kind][name] = array
            return function(*given.values())

        return program

    with tracing(what):
        used = _used(of(list(forms)), forms)
        program = jax_export.export(jax.jit(of(used), keep_unused=True), platforms=_PLATFORMS)
        made = program(*(forms[each] for each in used))
    for target in foreign_calls(made.mlir_module()):
        raise ConfigurationError(
            f"psnb.export: {what} calls {target!r:.80}, which is not an operation that exported "
            "models may call: write what it does with jax.numpy or jax.lax. Of linear algebra they "
            "may call LU, QR, Cholesky, symmetric eigenvalues, SVD and triangular systems, of "
            "matrices whose sizes and number do not depend on the batch"
        )
    return made, used


def _used(
    program: Callable[..., Any], forms: Mapping[_Argument, jax.ShapeDtypeStruct]
) -> list[_Argument]:
    """Return the arguments on which a result depends."""
    found = jax.make_jaxpr(program)(*forms.values()).jaxpr
    needed = {id(each) for each in found.outvars}
    for equation in reversed(found.eqns):
        if equation.effects or any(id(each) in needed for each in equation.outvars):
            needed |= {id(each) for each in equation.invars}
    pairs = zip(forms, found.invars, strict=True)
    return [argument for argument, variable in pairs if id(variable) in needed]


def _form(shape: Sequence[Any], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(dtype))


def _named(path: Sequence[Any]) -> str:
    """Return the name of a field: keys, with dots between."""
    kinds = ("key", "idx", "name")
    parts = [next(getattr(e, kind) for kind in kinds if hasattr(e, kind)) for e in path]
    return ".".join(map(str, parts)) or "0"


def _serialized(program: jax_export.Exported) -> bytes:
    try:
        return bytes(program.serialize())
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"JAX writes programs with {error.name}, which is not there: pip install 'psnb[jax]'"
        ) from error
