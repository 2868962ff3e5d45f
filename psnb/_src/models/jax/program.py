"""Program: a function of a batch, compiled, with the pull that goes before it.

Threads: closures of several threads may use one. Each has its own `BatchRows`; what is kept are the
compiled programs and the sizes that they were compiled for.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from types import FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.models.jax.batch import (
    BatchForm,
    BatchFunction,
    GroupForm,
    RowLayout,
    batch_text,
    form_of,
)
from psnb._src.models.jax.state import kept_state, merged_by_copies
from psnb._src.models.shared import BatchRows
from psnb._src.protocol.packing import dumps
from psnb._src.utils.text import with_article
from psnb._src.worker.context import current_context
from psnb.errors import ConfigurationError, SerializationError

# Steps that came to this process: equal ones are one, with the programs that it has compiled.
#
# So a step that is an argument of a closure, and arrives with each, is compiled once a worker.
# Steps are equal if their pickles are: functions by their code and what they refer to.
#
# Threads: any may load a step.

KEPT = 16
"""How many steps a process keeps; one that comes when there are more pushes out the one that was
not used for longest, which is compiled again if it returns."""

_lock = threading.Lock()  # guards what is kept, for a moment each
_kept: OrderedDict[bytes, Any] = OrderedDict()


def travelling(kind: Callable[..., Any], *made_of: Any) -> tuple[Any, ...]:
    """Return what the ``__reduce__`` of a step returns that is ``kind(*made_of)``."""
    try:
        packed = dumps(made_of, with_article(kind.__qualname__))
    except SerializationError as error:
        # As it was: the pickler of the step names the culprit, by where it is in the closure.
        raise error.__cause__ or error from None
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


# PackedTransfer: brings many arrays to a device in one copy for each dtype, and takes them apart
# there.
#
# A copy to an accelerator costs about as much for a few numbers as for a thousand.


class PackedTransfer(NamedTuple):
    """How arrays of a tree lie one after another; equal ones need one program.

    Attributes
    ----------
    tree : PyTreeDef
        The tree.
    shapes : tuple
        Dtype and shape of each leaf.
    """

    tree: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def apart(self, flat: Sequence[Any]) -> Any:
        """Return the tree from the arrays that `together` has made, in a program."""
        whole = dict(zip(dict.fromkeys(dtype for dtype, _ in self.shapes), flat, strict=True))
        starts = dict.fromkeys(whole, 0)
        leaves = []
        for dtype, shape in self.shapes:
            start = starts[dtype]
            starts[dtype] += math.prod(shape)
            leaves.append(whole[dtype][start : starts[dtype]].reshape(shape))
        return jax.tree.unflatten(self.tree, leaves)


def together(given: Any) -> tuple[PackedTransfer, list[np.ndarray]]:
    """Return the arrays of a tree as one for each dtype, and how to take them apart."""
    leaves, tree = jax.tree.flatten(given)
    arrays = [np.asarray(leaf) for leaf in leaves]
    parts: dict[str, list[np.ndarray]] = {}
    for each in arrays:
        parts.setdefault(each.dtype.name, []).append(each.reshape(-1))
    form = PackedTransfer(tree, tuple((each.dtype.name, each.shape) for each in arrays))
    return form, [np.concatenate(several) for several in parts.values()]


def device_called(name: str) -> jax.Device:
    """Return a device of this process, or raise ConfigurationError if there is none."""
    platform, _, number = name.partition(":")
    try:
        return jax.local_devices(backend=platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        here = ", ".join(f"{each.platform}:{each.id}" for each in jax.local_devices())
        raise ConfigurationError(
            f"device={name!r} is not there in this process, where JAX has {here} "
            f"({type(error).__name__}: {error}). Workers on machines with an accelerator need the "
            "JAX that is made for it, such as jax[cuda12]"
        ) from error


# Finds functions that change what they refer to: state that would be that of one worker. Pure.
#
# A compiled function runs in Python only while it is traced, so a counter that it keeps counts
# programs, and another one on each worker. What it draws from `random` or reads from a clock cannot
# be noticed: it is traced into the program as a constant.


@contextmanager
def pure(function: Callable[..., Any]) -> Iterator[None]:
    """Raise ConfigurationError at the end if a name of the function has another value, or content.

    Of its own globals and closure cells, and of the items of lists, sets and dicts.
    """
    before = _referred(function)
    yield
    after = _referred(function)
    changed = [name for name, (ids, _) in after.items() if ids != before.get(name, ([], []))[0]]
    if changed:
        name = getattr(function, "__qualname__", function)
        raise ConfigurationError(
            f"the function {name!r} changes {', '.join(map(repr, changed))}: that would be "
            "the state of one worker, changed only when a program is compiled. Return it "
            "(has_aux=True), or keep it in params or in a variable of the strategy"
        )


def _referred(function: Any) -> dict[str, tuple[list[int], list[Any]]]:
    """Return for each name the ids of its value and of its items; and these, to keep them alive."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return {}
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # one of its names has no value yet
        return {}
    found = {}
    for name, value in {**names.globals, **names.nonlocals}.items():
        parts = [value]
        if isinstance(value, dict):
            parts += [*value, *value.values()]
        elif isinstance(value, list | set):
            parts += value
        found[name] = [*map(id, parts)], parts
    return found


Inside = Callable[[Callable[[dict[str, Any], list[Any]], Any], dict[str, Any], list[Any]], Any]
"""What is done in the program: takes the function, the parameters by name and the groups' rows."""


class Pulled(NamedTuple):
    """What one batch needs.

    Attributes
    ----------
    rows : BatchRows
        The rows that the batch uses.
    fetched : dict
        The rows of each table.
    examples : int
        How many the batch has: the length of its first ids, or of its first array.
    number : int
        Of the step: the closure's, or how many there were before, where there is no closure.
    """

    rows: BatchRows
    fetched: dict[Embedding, np.ndarray]
    examples: int
    number: int


class Program:
    """A function of the user's, compiled for each form of batches.

    Parameters
    ----------
    of : BatchFunction
        The function.
    inside : callable
        See `Inside`.
    training : bool
        Whether ids that are not known get rows; then state of libraries must not move.
    draws : bool
        Whether random numbers that the function draws from what it refers to are others in each
        step.

    Attributes
    ----------
    layout : RowLayout
        How rows get into the program.
    compiled : int
        How many programs were compiled so far.
    """

    def __init__(
        self, of: BatchFunction, inside: Inside, *, training: bool, draws: bool = False
    ) -> None:
        self._of, self._inside, self._training, self._draws = of, inside, training, draws
        self.layout = RowLayout(of.tables, of.combiners)
        self.compiled = 0
        self._numbers = itertools.count()  # where there is no closure
        self._run = jax.jit(self._traced, static_argnames=("forms", "batch_form", "copy"))

    def __call__(self, batch: Any) -> tuple[Any, Pulled]:
        """Pull what a batch needs and run; return the result, in arrays of numpy."""
        ids = self._of.ids_of(batch)
        rows = BatchRows(training=self._training)
        located = self.layout.locate(ids, rows)
        values, fetched = rows.fetch(self._of.params.variables)
        forms, matrices, gathers = self.layout.form(located, rows, fetched)
        batch_form, arrays = form_of(batch)
        context = current_context()
        number = next(self._numbers) if context is None else context.closure
        given: Any = (
            [values[each] for each in self._of.params.variables],
            matrices,
            gathers,
            arrays,
            np.uint32(number & 0xFFFFFFFF),
        )
        copy = None
        if self._device is not None:
            copy, flat = together(given)
            given = jax.device_put(flat, self._device)
        result = self._run(given, forms=forms, batch_form=batch_form, copy=copy)
        examples = next((len(each) for each in (*ids.values(), *arrays) if each.shape), 1)
        return self._on_host(result), Pulled(rows, fetched, examples, number)

    def traced(self, batch: Any) -> tuple[Any, dict[Embedding, int]]:
        """Return the program for a batch as JAX's expression, and how many rows each table gives.

        Servers are not asked: shapes are enough.
        """
        rows, compiled = BatchRows(training=False), self.compiled
        located = self.layout.locate(self._of.ids_of(batch), rows)
        counts = rows.counts()
        fetched = {each: np.zeros((count, each.dim), each.dtype) for each, count in counts.items()}
        forms, matrices, gathers = self.layout.form(located, rows, fetched)
        batch_form, arrays = form_of(batch)
        values = [np.zeros(each.shape, each.dtype) for each in self._of.params.variables]
        given = values, matrices, gathers, arrays, np.uint32(0)
        run = partial(self._traced, forms=forms, batch_form=batch_form, copy=None)
        expression = jax.make_jaxpr(run)(given)
        self.compiled = compiled  # nothing was
        return expression, counts

    @cached_property
    def _on_host(self) -> Callable[[Any], Any]:
        if self._device is None and jax.default_backend() == "cpu":
            # They are here: `device_get` takes twice as long to find that out.
            return partial(jax.tree.map, np.asarray)
        return jax.device_get

    @cached_property
    def _device(self) -> jax.Device | None:
        return None if self._of.device is None else device_called(self._of.device)

    def _traced(
        self,
        given: Any,
        *,
        forms: tuple[GroupForm, ...],
        batch_form: BatchForm,
        copy: PackedTransfer | None,
    ) -> Any:
        self.compiled += 1  # runs once for each program, while it is traced
        of = self._of
        values, matrices, gathers, arrays, number = given if copy is None else copy.apart(given)
        batch = batch_form.batch(arrays)
        options = {}
        if of.seed is not None:
            options["key"] = jax.random.fold_in(jax.random.key(of.seed), number)

        def function(leaves: dict[str, Any], matrices: list[Any]) -> Any:
            rows: dict[str, Any] = {}
            for form, matrix, gather in zip(forms, matrices, gathers, strict=True):
                rows |= form.rows(matrix, gather)
            params = of.params.tree_of(leaves)
            try:
                return of.function(params, rows, batch, **options)
            except KeyError as error:
                if isinstance(batch, Mapping) and error.args[0] not in batch:
                    raise ConfigurationError(
                        f"{of.name} asks for {error.args[0]!r}: the batch has {batch_text(batch)}, "
                        f"and rows are there of {sorted(rows)}"
                    ) from error
                raise

        still = kept_state(number if self._draws else None) if self._training else nullcontext()
        with pure(of.function), merged_by_copies(), still:
            return self._inside(function, of.params.leaves(values), matrices)
