"""JaxProgram: a Keras model computed in JAX, compiled with the rows of a batch as inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from psnb._src.client.dense_shards import Blend
from psnb._src.client.variable import Variable
from psnb._src.models.export.exported import Exported
from psnb._src.models.jax.batch import batch_function
from psnb._src.models.jax.export import exported
from psnb._src.models.jax.step import forward, step
from psnb._src.models.jax.variables import by_name
from psnb._src.models.keras.data import whole
from psnb._src.models.keras.layers import looking_up
from psnb._src.models.keras.network import Blended, Computed, KerasNetwork
from psnb._src.models.keras.program import KerasProgram
from psnb._src.models.placing import ModelValues
from psnb._src.utils.arrays import concatenated


class JaxProgram(KerasProgram):
    """See `KerasProgram`."""

    _shaped = staticmethod(jax.eval_shape)

    def __init__(self, network: KerasNetwork, values: ModelValues) -> None:
        super().__init__(network, values)
        self._ids = _IdsOf(network, {name: each.dim for name, each in values.tables.items()})
        of: dict[str, Any] = {
            "params": by_name(values.flat),
            "tables": values.tables,
            "ids": lambda batch: self._ids(batch["x"]),
        }
        self._step = step(self._loss, has_aux=True, **of)
        self._described = self._step.describe
        self._score = forward(self._scored, **of)
        self._outputs = forward(self._predicted, **of)

    def _exported(self, x: dict[str, np.ndarray]) -> Exported:
        def predicted(params: Any, rows: Any, batch: Any) -> Any:
            return self._predicted(params, rows, {"x": batch})

        params, tables = by_name(self._values.flat), self._values.tables
        of = batch_function(predicted, params, tables, self._ids, "mean", None, None)
        return exported(of, x)

    def _train(self, given: dict[str, Any]) -> tuple[float, list[np.ndarray]]:
        state = self._values.state

        def blends(found: tuple[Any, dict[str, Blended], Any]) -> dict[Variable, Blend | None]:
            """Return what the step has blended into the state, for each variable of it."""
            shares, terms = ({name: each[n] for name, each in found[1].items()} for n in (0, 1))
            return {**dict.fromkeys(state.variables), **state.blends(shares, terms)}

        loss, found, _ = self._step.trained(given, blends, lambda found: float(found[2]))
        return loss, found[0]

    def _run(self, function: Any, *given: Any) -> Any:
        return jax.jit(function)(*given)

    def _loss(self, params: Any, rows: Any, batch: Any) -> Any:
        found = self._computed(params, rows, batch, training=True)
        return found.loss, (found.metrics, found.moved, found.weight)

    def _scored(self, params: Any, rows: Any, batch: Any) -> Any:
        return self._computed(params, rows, batch, training=False).metrics

    def _predicted(self, params: Any, rows: Any, batch: Any) -> Any:
        return self._computed(params, rows, batch, training=False).outputs

    def _computed(self, params: Any, rows: Any, batch: Any, *, training: bool) -> Computed:
        with looking_up(_Rows(rows)):
            return self.network.computed(params, batch, training=training)


class _Rows:
    """The rows of a batch, table by table, in the order in which embeddings ask for them."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._left = {name: each.reshape(-1, each.shape[-1]) for name, each in rows.items()}

    def __call__(self, table: str, ids: Any) -> Any:
        rows = self._left[table]
        self._left[table] = rows[ids.size :]
        return rows[: ids.size].reshape(*ids.shape, rows.shape[1])


class _IdsOf:
    """Finds the ids of each table in the inputs of a batch, before the model is computed.

    The model is traced once without rows. Ids that are an input are taken from the arrays; computed
    ids (a column, a sum) are a program of their own, of which XLA leaves out all else.
    """

    def __init__(self, network: KerasNetwork, dims: Mapping[str, int]) -> None:
        self._network, self._dims = network, dict(dims)
        # For each table which inputs are ids, in the order in which it is asked; None for what is
        # computed.
        self._sources: dict[str, list[str | None]] = {}
        self._computed = jax.jit(self._computed_ids)

    def __call__(self, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the ids of each table, for arrays; for what JAX traces, once they are known."""
        if not self._sources and self._dims:
            self._sources = self._learned(x)
        is_computed = any(None in each for each in self._sources.values())
        computed = iter(self._computed(x) if is_computed else ())
        found = {}
        for name, sources in self._sources.items():
            parts = [_whole(name, next(computed) if each is None else x[each]) for each in sources]
            if len(parts) > 1:
                traced = any(isinstance(each, jax.core.Tracer) for each in parts)
                join = jax.numpy.concatenate if traced else concatenated
                parts = [join([each.reshape(-1) for each in parts])]
            found[name] = parts[0]
        return found

    def _learned(self, x: dict[str, np.ndarray]) -> dict[str, list[str | None]]:
        traced, form = jax.make_jaxpr(self._asked, return_shape=True)(x)
        names = {id(each): n for each, n in zip(traced.jaxpr.invars, sorted(x), strict=True)}
        sources = iter([names.get(id(each)) for each in traced.jaxpr.outvars])
        found = {table: [next(sources) for _ in ids] for table, ids in sorted(form.items())}
        return {table: found[table] for table in self._dims if found[table]}

    def _computed_ids(self, x: Any) -> list[Any]:
        asked = self._asked(x)
        return [
            ids
            for table, sources in self._sources.items()
            for ids, source in zip(asked[table], sources, strict=True)
            if source is None
        ]

    def _asked(self, x: Any) -> dict[str, list[Any]]:
        asked: dict[str, list[Any]] = {table: [] for table in self._dims}

        def collect(table: str, ids: Any) -> Any:
            asked[table].append(ids)
            return jax.numpy.zeros((*ids.shape, self._dims[table]))

        with looking_up(collect):
            self._network.computed(self._network.own_values(), {"x": x}, training=False)
        return asked


def _whole(table: str, ids: Any) -> Any:
    # Keras takes floats for ids as well.
    if isinstance(ids, jax.core.Tracer):
        return ids if ids.dtype.kind in "iu" else ids.astype("int64")
    array = np.asarray(ids)
    return array if array.dtype.kind in "iu" else whole(f"embedding {table!r}", array)
