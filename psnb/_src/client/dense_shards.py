"""DenseShards: how a variable is spread over servers, read, written and saved.

It keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import NonFinite, checked_array, checked_rows
from psnb._src.client.parameter_shards import ParameterShards, divided, joined
from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import PendingRead, ShardWrite, read_request
from psnb._src.client.whole_tables import SavedPart, SavedState, TableLoad, read_states
from psnb._src.placement.layout import ShardId
from psnb._src.server.kernels import all_finite, copy_with_norm, norm
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.checks import COUNTS, Expected
from psnb._src.server.tables.presence import UpdateCounts, counts_together, within
from psnb._src.server.tables.sharding import row_ranges
from psnb._src.transport.message import as_float32
from psnb.errors import ConfigurationError


class Blend(NamedTuple):
    """Makes ``(1 - share) * value + term`` of each element of a variable.

    It stands where a gradient would in pushes, needs no optimizer, and in mode `Sync` the blends of
    a round are averaged as gradients are. A change that was computed from a value is right for that
    value only; a blend is right for whatever value there is when it comes.

    Attributes
    ----------
    shares, terms : numpy.ndarray
        Of the variable's shape and dtype. A share of 0 adds the term (a count), one of 1 sets it,
        one between moves the value so far towards ``term / share`` (a moving average).
    """

    shares: np.ndarray
    terms: np.ndarray


class PartialGradient(NamedTuple):
    """The gradient of some of a variable's numbers; it stands where a gradient would in pushes.

    All others stay as they are, with their state: see `psnb._src.server.tables.presence`.

    Attributes
    ----------
    gradient : numpy.ndarray
        Of one axis.
    ranges : numpy.ndarray
        Which numbers they are.
    together : bool
        Whether all of the variable's numbers count this update, as Keras counts.
    """

    gradient: np.ndarray
    ranges: np.ndarray
    together: bool = False


@dataclass(frozen=True, slots=True)
class DenseShard:
    """Rows ``start`` to ``stop`` of a variable, and which table of which shard holds them."""

    shard: ShardId
    table: str
    start: int
    stop: int


class DenseShards(ParameterShards):
    """A description of a variable, and the access to its shards; ``parts`` says what is where."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        optimizer: Optimizer | None,
        shards: Sequence[DenseShard],
        server_client: ServerClient | None,
        nonfinite: NonFinite = NonFinite.REFUSE,
        half: bool = False,
    ) -> None:
        tables = [(each.shard, each.table) for each in shards]
        super().__init__(name, optimizer, tables, server_client, nonfinite)
        self.shape, self.dtype, self._half = shape, dtype, half
        self.parts = tuple(shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return DenseShards, (
            *(self.name, self.shape, self.dtype, self.made_with, self.parts, None),
            *(self._nonfinite, self._half),
        )

    def elsewhere(self, strategy: str, server_client: ServerClient) -> DenseShards:
        return DenseShards(
            *(self.name, self.shape, self.dtype, self.made_with),
            [replace(part, shard=part.shard._replace(strategy=strategy)) for part in self.parts],
            server_client,
            *(self._nonfinite, self._half),
        )

    def part_shape(self, part: DenseShard) -> tuple[int, ...]:
        """Return the shape of a part's table."""
        return self.shape if len(self.parts) == 1 else (part.stop - part.start, *self.shape[1:])

    def part_nbytes(self, part: DenseShard) -> int:
        """Return the size of a part's values in bytes."""
        return math.prod(self.part_shape(part)) * self.dtype.itemsize

    def by_table(self, value: np.ndarray) -> dict[tuple[int, str], np.ndarray]:
        """Return the parts of a value, by the numbers of their shards and the names of tables."""
        parts = zip(self.parts, self._cut(value), strict=True)
        return {(part.shard.number, part.table): values for part, values in parts}

    @property
    def clips_by_norm(self) -> bool:
        # For a variable with several shards, clipnorm may be switched on live.
        several = self.made_with is not None and len(self.parts) > 1
        return several or super().clips_by_norm

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must match to be loaded, as JSON can hold it."""
        return {
            "kind": "variable",
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "slots": list(self.made_with.slots if self.made_with else ()),
        }

    def recipe(self) -> dict[str, Any]:
        """Return what `describe` lacks of how it was made, as JSON can hold it."""
        return {"nonfinite": self._nonfinite.value}

    @property
    def saved_form(self) -> Expected:
        """What each of its shards in a checkpoint must be."""
        slots = self.made_with.slots if self.made_with else ()
        return Expected(self.name, self.dtype, slots, self.shape)

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return values and optimizer state of every shard, for checkpoints."""
        states = read_states(self.server_client, self.tables)
        for part, state in zip(self.parts, states, strict=True):
            shape = self.part_shape(part)
            state |= {key: state[key].reshape(shape) for key in state.keys() - _IN_TAIL}
        return states

    def loads(
        self, states: Sequence[SavedState], only: Collection[int] | None = None
    ) -> list[TableLoad]:
        """Return what its tables get of its shards in a checkpoint, of which it has any number.

        For all of its tables, or those on the shards in ``only``.
        """
        rows, width = self.shape[0] if self.shape else 1, math.prod(self.shape[1:])
        saved = row_ranges(rows, len(states))
        # Each shard counted its own steps, and all have had the same pushes.
        step = np.array([max(state.step for state in states)])
        counts = counts_together(
            [
                (
                    (stop - start) * width,
                    None if state.updates is None else UpdateCounts.of(state.updates),
                    state.step,
                )
                for (start, stop), state in zip(saved, states, strict=True)
            ]
        )
        found = []
        for shard in self.parts:
            if only is not None and shard.shard.number not in only:
                continue
            first, last = (0, rows) if len(self.parts) == 1 else (shard.start, shard.stop)
            parts: list[tuple[SavedPart, int, int, int | None]] = []
            for (start, stop), state in zip(saved, states, strict=True):
                low, high = max(start, first), min(stop, last)
                if low < high:
                    within = (low - start) * width, (high - start) * width
                    parts.append((state.parts[0], *within, (low - first) * width))
            tail = {"step": step, **self._part_of(counts, shard)}
            table = shard.shard, shard.table
            found.append(TableLoad(table, parts, self.saved_form.row_nbytes, tail))
        return found

    def _part_of(self, counts: UpdateCounts | None, shard: DenseShard) -> dict[str, np.ndarray]:
        if counts is None:
            return {}
        width = math.prod(self.shape[1:])
        whole = len(self.parts) == 1
        own = counts if whole else counts.part(shard.start * width, shard.stop * width)
        return {COUNTS: own.array()}

    def _cut(self, array: np.ndarray) -> list[np.ndarray]:
        if len(self.parts) == 1:
            return [array]
        return [array[part.start : part.stop] for part in self.parts]

    def _owners(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted([part.stop for part in self.parts], rows, side="right")

    def reading(self, rows: ArrayLike | None = None) -> PendingRead:
        """Return the requests that read the value, or some rows of it."""
        if rows is None:
            requests = [
                read_request(s.shard, s.table, ops.ReadValues(self._half)) for s in self.parts
            ]
            return PendingRead(
                self.server_client, requests, lambda found: joined([*map(as_float32, found)])
            )
        checked = checked_rows(rows, self.name, self.shape)
        flat = checked.reshape(-1)
        parts = divided(self.parts, flat, self._owners)
        requests = [
            read_request(s.shard, s.table, ops.GatherRows(flat[at] - s.start, self._half))
            for s, at in parts
        ]

        def value(answers: list[np.ndarray]) -> np.ndarray:
            out = np.empty((flat.size, *self.shape[1:]), self.dtype)
            for (_, at), values in zip(parts, answers, strict=True):
                out[at] = as_float32(values)
            return out.reshape((*checked.shape, *self.shape[1:]))

        return PendingRead(self.server_client, requests, value)

    def pushing(
        self, gradient: ArrayLike | Blend | PartialGradient | list[Any]
    ) -> list[ShardWrite]:
        """Return the writes of a push, by shard; for several, one after the other."""
        if isinstance(gradient, list) and any(isinstance(each, Blend) for each in gradient):
            return [write for each in gradient for write in self.pushing(each)]
        if isinstance(gradient, Blend):
            shares, terms = (self.checked(each, "blend") for each in gradient)
            skipped = self.must_skip(terms, f"values for variable {self.name!r}")
            sent = map(ops.BlendValues, self._sent(shares), self._sent(terms))
            return [] if skipped else self._writes(sent)
        self.require_optimizer()
        what, together = f"gradient for variable {self.name!r}", False
        ranges: list[np.ndarray | None] = [None] * len(self.parts)
        if isinstance(gradient, PartialGradient):
            array = self._checked_partial(gradient, what)
            places = [within(gradient.ranges, each.start, each.stop) for each in self.parts]
            if len(self.parts) == 1:
                places = [(gradient.ranges, slice(None))]
            ranges, together = [own for own, _ in places], gradient.together
            parts, size = self._written([array[at] for _, at in places])
        else:
            array = self.checked(gradient, "gradient")
            parts, size = self._written(self._cut(array))
        if not (math.isfinite(size) or all_finite(array)) and self.must_skip(array, what):
            first = self.parts[0]
            return [(first.shard, ops.on_table(first.table, ops.SkipUpdates(1)))]
        # Computing the norm costs as much as looking for NaN and infinities, and finds them too. So
        # it is always sent, and clipnorm can be switched on live. A partial gradient also goes to
        # shards without any of it: the rate is that of the variable's count of updates.
        return self._writes(
            ops.PushGradient(part, size, None, own, together, half=self._half)
            for part, own in zip(parts, ranges, strict=True)
        )

    def _writes(self, of_parts: Iterable[ops.TableWrite]) -> list[ShardWrite]:
        parts = zip(self.parts, of_parts, strict=True)
        return [(part.shard, ops.on_table(part.table, write)) for part, write in parts]

    def _checked_partial(self, given: PartialGradient, what: str) -> np.ndarray:
        assert self.made_with is not None
        if not self.made_with.by_element:
            raise ConfigurationError(
                f"some parameters in variable {self.name!r} have no gradient in this step, and its "
                f"optimizer, {self.made_with!r}, takes all of them together (a norm). Give those "
                "that are not always used an optimizer of their own, by name"
            )
        return checked_array(given.gradient, self.dtype, what)

    def _written(self, of_shards: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
        """Return the parts of a gradient, one for each shard, and the norm of the whole.

        The parts are in memory shared with the servers, if there is any: then one pass checks and
        copies the gradient.
        """
        parts, norms = [], []
        for shard, part in zip(self.parts, of_shards, strict=True):
            buffer = self.server_client.allocate(shard.shard, part.shape, part.dtype)
            norms.append(norm(part) if buffer is None else copy_with_norm(part, buffer))
            if buffer is not None:
                buffer.flags.writeable = False
            parts.append(part if buffer is None else buffer)
        return parts, math.hypot(*norms)

    def checked(self, value: ArrayLike, what: str) -> np.ndarray:
        """Return a value as an array of the shape and dtype, or raise InvalidArrayError."""
        what = f"{what} for variable {self.name!r}"
        return checked_array(value, self.dtype, what, self.shape)

    def scattering(
        self,
        kind: type[ops.AssignRows | ops.AddRows],
        rows: ArrayLike,
        values: ArrayLike,
        sign: int = 1,
    ) -> list[ShardWrite]:
        """Return the writes of some rows; see `Variable.scatter_update`."""
        checked = checked_rows(rows, self.name, self.shape)
        what, reason = f"values for variable {self.name!r}", f" for rows of shape {checked.shape}"
        shape = (*checked.shape, *self.shape[1:])
        array = checked_array(values, self.dtype, what, shape, reason)
        flat = checked.reshape(-1)
        array = (array if sign > 0 else -array).reshape(flat.size, *self.shape[1:])
        return [
            (s.shard, ops.on_table(s.table, kind(flat[where] - s.start, array[where])))
            for s, where in divided(self.parts, flat, self._owners)
        ]

    def writing(
        self, kind: type[ops.AssignValues | ops.AddValues], value: ArrayLike, sign: int = 1
    ) -> list[ShardWrite]:
        """Return the writes of the whole value."""
        array = self.checked(value, "value")
        return self._writes(map(kind, self._sent(array if sign > 0 else -array)))

    def _sent(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """Yield each shard's part, copied once into memory shared with its server, if possible."""
        for shard, part in zip(self.parts, self._cut(array), strict=True):
            buffer = self.server_client.allocate(shard.shard, part.shape, part.dtype)
            if buffer is None:
                yield part
            else:
                buffer[...] = part
                buffer.flags.writeable = False
                yield buffer


_IN_TAIL = frozenset({"step", COUNTS})
