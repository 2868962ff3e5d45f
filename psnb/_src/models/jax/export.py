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

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.exported import Exported, returned, tracing
from psnb._src.models.export.jax_program import IDS, PROGRAM, foreign_calls, with_x64
from psnb._src.models.export.manifest import ModelFeed
from psnb._src.models.jax.batch import BatchForm, BatchFunction, as_ids, form_of
from psnb._src.models.jax.variables import flat_of
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
    batch = _Example(of, example)
    params, tables = of.params, of.tables
    leaves = flat_of(params).read()
    key = {} if of.seed is None else {"key": jax.random.fold_in(jax.random.key(of.seed), 0)}

    def computed(dense: dict[str, Any], rows: dict[str, Any], fields: dict[str, Any]) -> list[Any]:
        filled = batch.form.batch([fields[name] for name in batch.forms])
        found = of.function(params.tree_of(dense), rows, filled, **key)
        flat, structure = jax.tree.flatten(found)
        outputs.append(jax.tree.unflatten(structure, range(len(flat))))
        return flat

    outputs: list[Any] = []
    forms = {("dense", name): _form(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    for name, table in tables.items():
        forms["rows", name] = _form((*batch.shapes[name], table.dim), table.dtype)
    forms |= {("feed", name): form for name, form in batch.forms.items()}
    program, used = _exported(computed, forms, f"function {of.name!r}")
    feeds = [name for kind, name in used if kind == "feed"]
    of_ids = {*batch.sources.values(), *batch.computed_of}
    needed = [name for name in batch.leaves if name in {*feeds, *of_ids}]
    form, fetches = returned(outputs[-1], ((e.dtype.name, e.shape) for e in program.out_avals))
    return Exported(
        "jax",
        [batch.feed(name, cut=name in feeds) for name in needed],
        fetches,
        form,
        {name: leaves[name] for kind, name in used if kind == "dense"},
        {table.name: table_source(table) for table in tables.values()},
        {PROGRAM: _serialized(program), **batch.program},
        {
            "arguments": [list(each) for each in used],
            "features": {
                name: {
                    "table": tables[name].name,
                    "feed": batch.sources.get(name),
                    "combiner": of.combiners[name] if name in batch.bags else None,
                }
                for name in tables
            },
            "computed": [batch.computed_of, batch.computed],
            "x64": bool(jax.config.read("jax_enable_x64")),
        },
        {"jax": jax.__version__},
        flat_of(params).sources(),
    )


class _Example:
    """An example of a batch, and how batches of any size look.

    Parameters
    ----------
    of : BatchFunction
        The function.
    example : pytree
        A batch.

    Attributes
    ----------
    leaves : dict
        What is in it, by name.
    form : BatchForm
        How the program has a batch.
    forms : dict
        The forms of the arrays in that, by name, with a symbol.
    sources : dict
        For each feature whose ids are a feed, which one.
    shapes : dict
        The shapes of ids, with a symbol; for bags, the shape of the rows that they become.
    bags : set
        The features whose ids are bags.
    computed, computed_of : list
        The features whose ids are computed, and of which feeds.
    program : dict
        The file of their computation, if any are.
    """

    def __init__(self, of: BatchFunction, example: Any) -> None:
        found = jax.tree_util.tree_flatten_with_path(example)[0]
        self.leaves = {_named(path): leaf for path, leaf in found}
        if example is None or not self.leaves:
            raise ConfigurationError(
                f"psnb.export of {of.name!r} needs example=, a batch: it has the names, shapes and "
                "dtypes of what the model is fed"
            )
        self._example = example
        sizes = {name: len(leaf) for name, leaf in self.leaves.items() if np.shape(leaf)}
        if len(set(sizes.values())) > 1:
            raise ConfigurationError(
                f"psnb.export: the arrays of example= must have one example in each row, and their "
                f"lengths differ: {sizes}"
            )
        (self._size,) = jax_export.symbolic_shape("batch")
        self.form, self.forms, _ = self._formed()
        self.sources: dict[str, str] = {}
        self.shapes: dict[str, tuple[Any, ...]] = {}
        self.bags: set[str] = set()
        self.computed_of: list[str] = []
        self.program: dict[str, bytes] = {}
        made, owners = of.made_ids(example), {id(e): name for name, e in self.leaves.items()}
        for name, given in made.items():
            if isinstance(given, Ragged):
                if id(given) not in owners:
                    raise ConfigurationError(
                        f"the ids of feature {name!r} are Ragged and are made in ids(batch), which "
                        "cannot be exported: make them a field of the batch, in Dataset.map"
                    )
                self.bags.add(name)
                self.shapes[name] = (self._size,)
            if id(given) in owners:
                self.sources[name] = owners[id(given)]
                self.shapes.setdefault(name, self._any_size(np.shape(given)))
            as_ids(name, given)
        self.computed = [name for name in made if name not in self.sources]
        if self.computed and of.ids is not None:
            self._trace(of.ids, made)

    def feed(self, name: str, *, cut: bool) -> ModelFeed:
        """Return a feed; ``cut`` says that the program takes it in the dtype that JAX has."""
        leaf = self.leaves[name]
        if isinstance(leaf, Ragged):
            return ModelFeed(name, leaf.dtype.name, (None, *leaf.values.shape[1:]), "ragged")
        array = np.asarray(leaf)
        dtype = array.dtype
        if cut and dtype.kind == "f":
            dtype = self.forms[name].dtype
        return ModelFeed(name, dtype.name, (None, *array.shape[1:]) if array.ndim else ())

    def _formed(self) -> tuple[BatchForm, dict[str, jax.ShapeDtypeStruct], dict[str, np.ndarray]]:
        """Return the form of the batch, and by name the forms of the arrays in it, and these."""
        form, arrays = form_of(self._example)
        behind = {at for at, _, _ in form.behind}
        names = [name for at, name in enumerate(self.leaves) if at not in behind]
        found = dict(zip(names, map(np.asarray, arrays), strict=True))
        return form, {n: _form(self._any_size(e.shape), e.dtype) for n, e in found.items()}, found

    def _trace(self, ids: Callable[[Any], Mapping[str, Any]], made: Mapping[str, Any]) -> None:
        """Export what computes ids, with integers as wide as they are."""
        what = (
            f"ids(batch) of {', '.join(map(repr, self.computed))}, which are to be fields of the "
            "batch as they are, or computed with operators and jax.numpy,"
        )
        with with_x64(True):
            form, forms, arrays = self._formed()

            def computed(_: Any, __: Any, fields: dict[str, Any]) -> list[Any]:
                given = ids(form.batch([fields[name] for name in forms]))
                return [jax.numpy.asarray(given[name]) for name in self.computed]

            program, kept = _exported(computed, {("feed", n): e for n, e in forms.items()}, what)
            self.computed_of = [name for _, name in kept]
            again = jax.jit(program.call)(*(arrays[name] for name in self.computed_of))
            for name, array in zip(self.computed, again, strict=True):
                if not np.array_equal(np.asarray(array), np.asarray(made[name])):
                    raise ConfigurationError(
                        f"psnb.export: {what} give other ids for {name!r} when JAX traces them"
                    )
        avals = zip(self.computed, program.out_avals, strict=True)
        self.shapes |= {name: aval.shape for name, aval in avals}
        self.program = {IDS: _serialized(program)}

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
