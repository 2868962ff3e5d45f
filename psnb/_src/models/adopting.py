"""Adopting: a model takes up the parameters that a strategy has from before.

After `psnb.attach` and `psnb.resume` a strategy has the parameters of a model, but this process has
no model. A model of the same name adopts them: they stay as they are, with the state of their
optimizers. What does not fit is refused, with all that is different. A model that this process
has a handle of already is adopted on demand alone: a cell that runs again may want weights that
start over as well as those that were learned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import structs
from xxhash import xxh3_64_hexdigest

from psnb._src.client.arguments import as_initializer
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.client.model_records import Arrays, ModelRecord, ModelRecords
from psnb._src.client.variable import Variable
from psnb._src.models.flat_variables import (
    ArrayLocation,
    FlatVariables,
    OptimizerChoice,
    Strategy,
    check_free,
    optimizer_for,
    place_flat,
    place_state,
)
from psnb._src.models.table_rows import write_rows
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.initializers import Initializer
from psnb._src.utils.text import NAME, counted, truncate
from psnb.errors import ConfigurationError

logger = logging.getLogger("psnb")

LEARNING, MOVED = "parameters", "state"
"""The kinds of arrays: those that optimizers move, and those that steps move beside them."""

_MOST, _FEW = 10, 3
"""How many differences of a kind, and how many names in a line, are listed one by one."""


class WantedTable(NamedTuple):
    """A table that a model needs, and the ids and rows that it begins with, if it has some."""

    dim: int
    rows: int | None
    dtype: np.dtype
    initializer: Initializer | float | None = 0.0
    begins: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


@dataclass(frozen=True)
class WantedModel:
    """What a model needs on the servers.

    Attributes
    ----------
    arrays : mapping of str to mapping
        For each kind its arrays by name.
    tables : mapping of str to WantedTable
        Its tables.
    local : mapping of str to str
        See `ModelRecord`.
    """

    arrays: Mapping[str, Mapping[str, np.ndarray]]
    tables: Mapping[str, WantedTable] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)


class AdoptedModel(NamedTuple):
    """What a model has taken up: arrays of each kind, and tables by its own names."""

    arrays: dict[str, FlatVariables]
    tables: dict[str, Embedding]


Difference = tuple[str, str]
"""Its kind, and what it is."""


class _Optimizers(NamedTuple):
    """What some parameters have on the servers, and what the model was given for them."""

    names: str
    parameter: str
    live: Optimizer | None
    given: Optimizer


def place_model(
    strategy: Strategy,
    name: str,
    wanted: WantedModel,
    *,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    adopt: bool | None,
    named: Callable[[ModelRecord, WantedModel], ModelRecord] = lambda record, wanted: record,
    moved: str = "state",
    clips_each: bool = False,
    apart: Callable[[str], object] = lambda name: None,
) -> AdoptedModel:
    """Put what a model needs on the servers, or take up what is there of it.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        What the model is called there.
    wanted : WantedModel
        What it needs.
    sparse, dense : Optimizer, callable or None
        Those that it was given. Of what is there servers keep the optimizers, with their
        hyperparameters; a warning says what is different.
    adopt : bool or None
        As for `psnb.torch.distribute`.
    named : callable, optional
        Gives what was placed the names that the model has for it, if these are not of the user.
    moved : str
        What variables of arrays that steps move are called, after the model's name.
    clips_each : bool
        Whether ``clipnorm`` is of each array by itself: servers clip the norm of a variable.
    apart : callable
        As for `place_flat`.

    Raises
    ------
    ConfigurationError
        If it must not be adopted, or does not fit; or if there is no optimizer for a parameter, or
        a name is taken. Nothing was changed.
    """
    found = _adopted(strategy, name, wanted, sparse, dense, adopt, named)
    if found is not None:
        return found
    learning = wanted.arrays[LEARNING]
    optimizers = {each: optimizer_for(sparse, each) for each in wanted.tables}  # type: ignore[arg-type]
    own = {each: optimizer_for(dense, each) for each in learning}  # type: ignore[arg-type]
    names = {each: f"{name}.{each}" for each in wanted.tables}
    moving = wanted.arrays.get(MOVED)
    check_free(strategy, [name, *([] if moving is None else [f"{name}.{moved}"]), *names.values()])
    alone = {n for n, each in own.items() if clips_each and each.clipnorm is not None}
    groups = {name: [each for each in learning if each not in alone]}
    groups |= {f"{name}.{each}": [each] for each in learning if each in alone}
    placed = [
        place_flat(
            strategy, called, {each: learning[each] for each in group}, own.__getitem__, apart
        )
        for called, group in groups.items()
    ]
    arrays = {LEARNING: FlatVariables.joined(placed)}
    if moving is not None:
        arrays[MOVED] = place_state(strategy, f"{name}.{moved}", moving)
    tables = {}
    for each, table in wanted.tables.items():
        tables[each] = strategy.embedding(
            names[each],
            table.dim,
            table.rows,
            initializer=table.initializer,
            optimizer=optimizers[each],
            dtype=table.dtype,
        )
        if table.begins is not None:
            write_rows(tables[each], *table.begins())
    strategy.__psnb_models__.use(name)
    record = ModelRecord(
        {kind: _contents(flat) for kind, flat in arrays.items()},
        {each: table.name for each, table in tables.items()},
        dict(wanted.local),
    )
    strategy.__psnb_models__.add(name, record)
    return AdoptedModel(arrays, tables)


def _adopted(
    strategy: Strategy,
    name: str,
    wanted: WantedModel,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    adopt: bool | None,
    named: Callable[[ModelRecord, WantedModel], ModelRecord],
) -> AdoptedModel | None:
    """Return what a model takes up; None if it is to be placed."""
    if adopt is not None and not isinstance(adopt, bool):
        raise ConfigurationError(f"adopt must be True, False or None, found {adopt!r:.200}")
    models = strategy.__psnb_models__
    record = models.all().get(name)
    if record is None:
        _check_new(models.waiting(), list(models.all()), name, adopt)
        return None
    _check_wish(name, adopt, used=models.used(name))
    found = _Found(strategy.parameters, named(record, wanted))
    differences, optimizers = list(_differences(wanted, found)), []
    if not differences:
        optimizers = list(_optimizers(wanted, found, sparse, dense))
        differences = list(_others(optimizers))
    if differences:
        raise ConfigurationError(
            "\n".join(
                [
                    f"model {name!r} does not fit what the strategy has of it:",
                    *_lines(differences),
                    "nothing was changed. To go on, make the model as it was; for one beside it "
                    "that begins untrained, give another name=",
                ]
            )
        )
    models.use(name)
    taken = found.taken(wanted)
    _say(name, taken, optimizers)
    return taken


def local_value(dtype: object, shape: Sequence[int], value: np.ndarray) -> str:
    """Return what identifies a value that stays with a model, such as a frozen embedding."""
    digest = xxh3_64_hexdigest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return f"{dtype} of shape {tuple(shape)} with checksum {digest}, on no server"


def note_local(models: ModelRecords, name: str, local: Mapping[str, str]) -> None:
    """Note that the values of a model that are on no server are others now."""
    record = models.all()[name]
    if record.local != local:
        models.add(name, structs.replace(record, local=dict(local)))


def scratch(strategy: Strategy, name: str, what: str, size: int) -> Variable:
    """Return a variable of a model whose value is not needed later: one from before, or a new one.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        The model, which was placed.
    what : str
        What the variable is for.
    size : int
        How many numbers of float64 it has.
    """
    models = strategy.__psnb_models__
    record = models.all()[name]
    called = record.scratch.get(what, "")
    found = strategy.parameters.get(called)
    # One that another handle of this process uses may be in use at this very moment.
    if isinstance(found, Variable) and found.shape == (size,) and not models.use(called):
        return found
    number, called = 0, f"{name}.{what}"
    while called in strategy.parameters:
        number, called = number + 1, f"{name}.{what}.{number + 1}"
    made = strategy.variable(np.zeros(size), called)
    models.use(called)
    models.add(name, structs.replace(record, scratch={**record.scratch, what: called}))
    return made


def _contents(flat: FlatVariables) -> dict[str, Arrays]:
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {e.name: [] for e in flat.variables}
    for name, place in sorted(flat.places.items(), key=lambda item: item[1].start):
        found[flat.variables[place.variable].name].append((name, place.shape))
    return {name: tuple(each) for name, each in found.items()}


def _check_new(waiting: Sequence[str], known: Sequence[str], name: str, adopt: bool | None) -> None:
    """Raise or warn if a model begins untrained where others wait to be taken up."""
    if adopt:
        there = f"those that it has: {_listed(known)}" if known else "it has none"
        raise ConfigurationError(
            f"adopt=True: the strategy has no model called {name!r} that was placed wholly; "
            f"{there}. name= says which one is meant; without adopt= it is placed, untrained"
        )
    if waiting and adopt is None:
        logger.warning(
            "model %r begins untrained: the strategy has no model of this name from before. Of %s "
            "it has one, which has not been taken up yet: name= says which one is meant, and "
            "adopt=False that this is a new one",
            name,
            _listed(waiting),
        )


def _check_wish(name: str, adopt: bool | None, *, used: bool) -> None:
    """Raise if a model that is there must not be adopted."""
    if adopt is False:
        raise ConfigurationError(
            f"adopt=False: the strategy has a model called {name!r} already; give the new one "
            "another name=, or leave adopt= out to go on with what that one has learned"
        )
    if used and adopt is None:
        raise ConfigurationError(
            f"the strategy has a model called {name!r} already, which was distributed in this "
            "process. Say what is meant: adopt=True goes on with its parameters as they are now, "
            "for all handles; name= places another one beside it, which begins untrained; a new "
            "strategy begins with nothing"
        )


class _Found:
    """What the strategy has of a model."""

    def __init__(self, parameters: Mapping[str, Variable | Embedding], record: ModelRecord) -> None:
        self._parameters, self.record = parameters, record
        self.variables = {
            kind: [self._variable(each) for each in contents]
            for kind, contents in record.arrays.items()
        }
        self.places: dict[str, dict[str, ArrayLocation]] = {kind: {} for kind in record.arrays}
        for kind, contents in record.arrays.items():
            for number, arrays in enumerate(contents.values()):
                start = 0
                for name, shape in arrays:
                    self.places[kind][name] = ArrayLocation(number, start, shape)
                    start += prod(shape)

    def table(self, name: str) -> Embedding:
        """Return a table by what the model calls it."""
        found = self._parameters[self.record.tables[name]]
        assert isinstance(found, Embedding)
        return found

    def arrays(self, kind: str) -> dict[str, str]:
        """Return what the arrays of a kind are, by name."""
        variables = self.variables.get(kind, [])
        return {
            name: _array(variables[place.variable].dtype, place.shape)
            for name, place in self.places.get(kind, {}).items()
        }

    def tables(self) -> dict[str, str]:
        """Return what the tables are, by what the model calls them."""
        found = {}
        for name in self.record.tables:
            table = self.table(name)
            initializer = shards_of(table).spec.initializer
            found[name] = _table(WantedTable(table.dim, table.rows, table.dtype, initializer))
        return found

    def taken(self, wanted: WantedModel) -> AdoptedModel:
        """Return all of it, in the order in which the model has it."""
        arrays = {}
        for kind, several in wanted.arrays.items():
            places = {name: self.places[kind][name] for name in several}
            arrays[kind] = FlatVariables(self.variables.get(kind, ()), places)
        return AdoptedModel(arrays, {name: self.table(name) for name in wanted.tables})

    def _variable(self, name: str) -> Variable:
        found = self._parameters[name]
        assert isinstance(found, Variable)
        return found


def _differences(wanted: WantedModel, found: _Found) -> Iterator[Difference]:
    for kind, arrays in wanted.arrays.items():
        needed = {name: _array(each.dtype, each.shape) for name, each in arrays.items()}
        yield from _compared(needed, found.arrays(kind))
    tables = {name: _table(each) for name, each in wanted.tables.items()}
    yield from _compared(tables, found.tables())
    yield from _compared(wanted.local, found.record.local)


def _compared(needed: Mapping[str, str], has: Mapping[str, str]) -> Iterator[Difference]:
    for name, what in needed.items():
        if name not in has:
            yield "missing there", f"{_quoted(name)}, {what}"
        elif has[name] != what:
            yield "different", f"{_quoted(name)}: there {has[name]}, here {what}"
    for name, what in has.items():
        if name not in needed:
            yield "only there", f"{_quoted(name)}, {what}"


def _array(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype} of shape {shape}"


def _table(table: WantedTable) -> str:
    """Return what a table is: all that must be the same."""
    if table.rows is not None:
        return f"table of {table.rows:,} rows of {table.dtype}[{table.dim}]"
    # What decides on the rows of ids that come later.
    begins = as_initializer(table.initializer, "").describe()
    return f"table of any id, rows of {table.dtype}[{table.dim}] that begin by {begins}"


def _optimizers(
    wanted: WantedModel,
    found: _Found,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
) -> Iterator[_Optimizers]:
    """Yield the optimizers of parameters that the model was given some for, of equal ones once."""
    both: dict[tuple[str, Optimizer], tuple[Variable | Embedding, list[str]]] = {}
    if dense is not None:
        for name in wanted.arrays[LEARNING]:
            place = found.places[LEARNING][name]
            variable = found.variables[LEARNING][place.variable]
            key = variable.name, optimizer_for(dense, name)
            both.setdefault(key, (variable, []))[1].append(name)
    if sparse is not None:
        for name in wanted.tables:
            table = found.table(name)
            both[table.name, optimizer_for(sparse, name)] = table, [name]
    for (_, given), (parameter, names) in both.items():
        live = None if parameter.optimizer is None else parameter.optimizer.current()
        yield _Optimizers(_listed(names), parameter.name, live, given)


def _others(several: Sequence[_Optimizers]) -> Iterator[Difference]:
    for each in several:
        if each.live is None or type(each.live) is not type(each.given):
            both = f"there {each.live}, here {each.given}"
            yield "different", f"the optimizer of {each.names}: {both}"
        elif each.live.slots != each.given.slots:
            state = f"there {', '.join(each.live.slots)}, here {', '.join(each.given.slots)}"
            yield "different", f"the state that the optimizer of {each.names} needs: {state}"


def _say(name: str, taken: AdoptedModel, optimizers: Sequence[_Optimizers]) -> None:
    count = sum(len(flat.variables) for flat in taken.arrays.values())
    logger.warning(
        "model %r goes on with what the strategy has of it: %s, %s, and the state of their "
        "optimizers; the values that it was given here are not used",
        name,
        counted(count, "variable"),
        counted(len(taken.tables), "table"),
    )
    for each in optimizers:
        own = [(part.name, getattr(each.live, part.name)) for part in fields(each.given)]
        others = [
            f"{part}={there!r} (not {here!r})"
            for part, there in own
            if there != (here := getattr(each.given, part))
        ]
        if others:
            logger.warning(
                "the optimizer of %s keeps what the servers have: %s. This changes it: "
                "strategy.parameters[%r].optimizer.%s = ...",
                each.names,
                ", ".join(others),
                each.parameter,
                others[0].partition("=")[0],
            )


def _lines(differences: Sequence[Difference]) -> Iterator[str]:
    kinds = dict.fromkeys(kind for kind, _ in differences)
    for kind in kinds:
        several = [text for other, text in differences if other == kind]
        yield from (f"  {kind}: {each}" for each in several[:_MOST])
        if len(several) > _MOST:
            yield f"  {kind}: {len(several) - _MOST:,} more"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return ", ".join(map(_quoted, names[:_FEW])) + more


def _quoted(name: str) -> str:
    return truncate(repr(name), NAME)
