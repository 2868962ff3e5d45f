"""Placing: puts the values of a model on the servers, or takes up what a strategy has of it.

After `psnb.attach` and `psnb.resume` a strategy has the parameters of a model, but this process has
no model. A model of the same name adopts them: they stay as they are, with the state of their
optimizers. Parameters that do not fit are refused, with all differences. A model of which this
process has a handle already is adopted only on demand: a cell that runs again may want new weights
as well as the learned ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from xxhash import xxh3_64_hexdigest

from psnb._src.client.arguments import as_initializer
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import embedding_spec
from psnb._src.client.handles import shards_of
from psnb._src.client.model_records import Arrays, ModelRecord, ModelRecords
from psnb._src.client.variable import Variable
from psnb._src.models.flat_variables import (
    ArrayLocation,
    FlatVariables,
    OptimizerChoice,
    check_free,
    optimizer_for,
    place_flat,
)
from psnb._src.models.table_options import (
    TableOptions,
    check_dtype,
    check_options,
    kept,
    too_many,
)
from psnb._src.models.table_rows import read_rows, replace_rows, write_rows
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.initializers import Initializer
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb._src.transport.half_width import computed
from psnb._src.utils.text import NAME, counted, truncate
from psnb.errors import ConfigurationError, InvalidArrayError

logger = logging.getLogger("psnb")

_NO_IDS = np.empty(0, np.uint64)

_MOST, _FEW = 10, 3
"""How many differences of a kind, and how many names in a line, are listed."""


class WantedTable(NamedTuple):
    """A table that a model needs, and the ids and rows that it begins with, if it has some."""

    dim: int
    rows: int | None
    dtype: np.dtype
    initializer: Initializer | float | None = 0.0
    begins: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


@dataclass(frozen=True)
class WantedModel:
    """The parameters, state and tables that a model needs on the servers.

    Attributes
    ----------
    parameters, state : mapping of str to numpy.ndarray
        By name, the arrays that optimizers move, and those that steps change without a gradient.
    tables : mapping of str to WantedTable
        Its tables.
    local : mapping of str to str
        See `ModelRecord`.
    """

    parameters: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    tables: Mapping[str, WantedTable] = field(default_factory=dict)
    local: Mapping[str, str] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """All arrays, by their kind in a `ModelRecord`."""
        return {"parameters": self.parameters, "state": self.state}


@dataclass(frozen=True)
class ModelValues:
    """The values of a model on the servers; travels with closures.

    Attributes
    ----------
    parameters, state : FlatVariables
        By name, the arrays that optimizers move, and those that steps change without a gradient.
    tables : dict
        The tables, by the model's names for them.
    """

    parameters: FlatVariables
    state: FlatVariables
    tables: dict[str, Embedding]

    @property
    def flat(self) -> FlatVariables:
        """Parameters and state together."""
        return FlatVariables.joined([self.parameters, self.state])

    def read(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Read values, also of tables, by name; further values may come with them."""
        found: dict[str, np.ndarray] = {}
        for flat in (self.parameters, self.state):
            if not flat.places.keys().isdisjoint(names):
                found |= flat.read()
        return found | {name: read_rows(self.tables[name]) for name in self.tables.keys() & names}

    def write(
        self, arrays: Mapping[str, np.ndarray], rows: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Replace arrays, and the rows of tables, by name; the state of optimizers stays as it is.

        Raises
        ------
        InvalidArrayError
            If an array has another shape, or a table may not have that many rows; nothing was
            changed.
        """
        for name, (ids, _) in rows.items():
            shards = shards_of(self.tables[name])
            if reason := too_many(shards.spec, len(shards.shard_ids), ids):
                raise InvalidArrayError(f"{reason}. Nothing was changed")
        whole = []
        for flat in (self.parameters, self.state):
            given = {name: arrays[name] for name in flat.places if name in arrays}
            if given and len(given) < len(flat.places):
                given = {**flat.read(), **given}
            if given:
                flat.check(given)
                whole.append((flat, given))
        for flat, given in whole:
            flat.assign(given)
        for name, (ids, values) in rows.items():
            replace_rows(self.tables[name], ids, values)


Difference = tuple[str, str]
"""Its kind, and what it is."""

_Optimizers = tuple[str, str, Optimizer | None, Optimizer]
"""Parameters, where they are, the optimizer that they have there, and the one given for them."""


def place_model(
    strategy: ParameterServerStrategy,
    name: str,
    wanted: WantedModel,
    *,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    adopt: bool | None,
    tables: TableOptions | None = None,
    named: Callable[[ModelRecord, WantedModel], ModelRecord] = lambda record, wanted: record,
    moved: str = "state",
    clips_each: bool = False,
    apart: Callable[[str], object] = lambda name: None,
) -> ModelValues:
    """Put a model's parameters on the servers, or adopt present ones.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        The model's name there.
    wanted : WantedModel
        What it needs.
    sparse, dense : Optimizer, callable or None
        The optimizers that it was given. Servers keep the optimizers of adopted parameters, with
        their hyperparameters; a warning says which differ.
    adopt : bool or None
        As for `psnb.torch.distribute`.
    tables : mapping, optional
        How servers keep tables, by their names in the model. What is given of an adopted table must
        be so there.
    named : callable, optional
        Gives placed parameters the model's names for them, if these are not the user's.
    moved : str
        The names of variables of arrays that steps move, after the model's name.
    clips_each : bool
        Whether ``clipnorm`` is of each array by itself: servers clip the norm of a variable.
    apart : callable
        As for `place_flat`.

    Raises
    ------
    ConfigurationError
        If it must not be adopted, or does not fit; or if there is no optimizer for a parameter, a
        name is taken, or servers cannot keep a table so. Nothing was changed.
    """
    if adopt is not None and not isinstance(adopt, bool):
        raise ConfigurationError(f"adopt must be True, False or None, found {adopt!r:.200}")
    models = strategy.__psnb_models__
    options = check_options(tables, [*wanted.tables])
    if (record := _record(models, name, adopt)) is not None:
        return _adopted(strategy, name, named(record, wanted), wanted, sparse, dense, options)
    optimizers = {each: optimizer_for(sparse, each) for each in wanted.tables}  # type: ignore[arg-type]
    own = {each: optimizer_for(dense, each) for each in wanted.parameters}  # type: ignore[arg-type]
    names = {each: f"{name}.{each}" for each in wanted.tables}
    own_state = [f"{name}.{moved}"] if wanted.state else []
    check_free(strategy, [name, *own_state, *names.values()])
    shards = strategy.__psnb_shards__
    forms: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for each, table in wanted.tables.items():
        form = names[each], table.dim, table.rows, table.initializer, optimizers[each]
        forms[each] = form, {"dtype": table.dtype, **options[each]}
        spec = embedding_spec(shards, *form, **forms[each][1])
        check_dtype(each, spec, table.dtype)
        ids = table.begins()[0] if table.begins is not None and table.rows is None else _NO_IDS
        if reason := too_many(spec, shards, ids):
            raise ConfigurationError(f"{reason}. Nothing was placed")
    groups: dict[str, dict[str, np.ndarray]] = {name: {}}
    for each, array in wanted.parameters.items():
        alone = clips_each and own[each].clipnorm is not None
        groups.setdefault(f"{name}.{each}" if alone else name, {})[each] = array
    placed = [
        place_flat(strategy, called, group, own.__getitem__, apart)
        for called, group in groups.items()
    ]
    state = place_flat(strategy, f"{name}.{moved}", wanted.state, None)
    arrays = {"parameters": FlatVariables.joined(placed), "state": state}
    made = {}
    for each, table in wanted.tables.items():
        form, kept_so = forms[each]
        made[each] = strategy.embedding(*form, **kept_so)
        if table.begins is not None:
            write_rows(made[each], *table.begins())
    models.use(name)
    contents: dict[str, dict[str, Arrays]] = {
        kind: {
            variable.name: tuple((each, flat.places[each].shape) for each in several)
            for variable, several in zip(flat.variables, flat.names, strict=True)
        }
        for kind, flat in arrays.items()
    }
    models.add(name, ModelRecord(contents, names, dict(wanted.local)))
    return ModelValues(**arrays, tables=made)


def _adopted(
    strategy: ParameterServerStrategy,
    name: str,
    record: ModelRecord,
    wanted: WantedModel,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
    options: Mapping[str, Mapping[str, Any]],
) -> ModelValues:
    parameters: Mapping[str, Any] = strategy.parameters
    arrays = dict.fromkeys(wanted.arrays, FlatVariables((), {}))
    for kind, contents in record.arrays.items():
        places = {}
        for number, several in enumerate(contents.values()):
            start = 0
            for each, shape in several:
                places[each] = ArrayLocation(number, start, shape)
                start += prod(shape)
        arrays[kind] = FlatVariables([parameters[each] for each in contents], places)
    tables = {each: parameters[table] for each, table in record.tables.items()}
    differences, optimizers = [*_differences(wanted, arrays, tables, record.local)], []
    if not differences:
        differences = [*_kept_otherwise(strategy, tables, wanted, options)]
    if not differences:
        optimizers = [*_optimizers(wanted, arrays["parameters"], tables, sparse, dense)]
        differences = [*_others(optimizers)]
    if differences:
        raise ConfigurationError(
            "\n".join(
                [
                    f"model {name!r} does not fit what the strategy has of it:",
                    *_lines(differences),
                    "nothing was changed. To go on, make the model as it was; for "
                    "another one, which begins untrained, give another name=",
                ]
            )
        )
    strategy.__psnb_models__.use(name)
    # In the order in which the model has them.
    ordered = {
        kind: FlatVariables(arrays[kind].variables, {n: arrays[kind].places[n] for n in own})
        for kind, own in wanted.arrays.items()
    }
    found = ModelValues(**ordered, tables={each: tables[each] for each in wanted.tables})
    _say(name, found, optimizers)
    return found


def local_value(dtype: object, shape: Sequence[int], value: np.ndarray) -> str:
    """Return what identifies a value that stays with a model, such as a frozen embedding."""
    digest = xxh3_64_hexdigest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return f"{dtype} of shape {tuple(shape)} with checksum {digest}, on no server"


def note_local(models: ModelRecords, name: str, local: Mapping[str, str]) -> None:
    """Note that the values of a model that are on no server are others now."""
    record = models.all()[name]
    if record.local != local:
        models.add(name, structs.replace(record, local=dict(local)))


def scratch(strategy: ParameterServerStrategy, name: str, what: str, size: int) -> Variable:
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


def _record(models: ModelRecords, name: str, adopt: bool | None) -> ModelRecord | None:
    """Return the model to adopt; raise or warn where there is none, or none is wanted."""
    record, known = models.all().get(name), list(models.all())
    if record is not None and adopt is False:
        raise ConfigurationError(
            f"adopt=False: the strategy has a model called {name!r} already; give the new one "
            "another name=, or leave adopt= out to go on with what that one has learned"
        )
    if record is not None and adopt is None and models.used(name):
        raise ConfigurationError(
            f"the strategy has a model called {name!r} already, which was distributed in this "
            "process. Say what is meant: adopt=True goes on with its parameters as they are now, "
            "for all handles; name= places another one, which begins untrained; a new "
            "strategy begins with nothing"
        )
    if record is None and adopt:
        there = f"those that it has: {_listed(known)}" if known else "it has none"
        raise ConfigurationError(
            f"adopt=True: the strategy has no model called {name!r} that was placed wholly; "
            f"{there}. name= says which one is meant; without adopt= it is placed, untrained"
        )
    if record is None and adopt is None and (waiting := models.waiting()):
        logger.warning(
            "model %r begins untrained: the strategy has no model of this name from before. Of %s "
            "it has one, which has not been taken up yet: name= says which one is meant, and "
            "adopt=False that this is a new one",
            name,
            _listed(waiting),
        )
    return record


def _differences(
    wanted: WantedModel,
    arrays: Mapping[str, FlatVariables],
    tables: Mapping[str, Embedding],
    local: Mapping[str, str],
) -> Iterator[Difference]:
    for kind, several in wanted.arrays.items():
        flat = arrays[kind]
        yield from _compared(
            {name: f"{each.dtype} of shape {each.shape}" for name, each in several.items()},
            {
                name: f"{flat.variables[place.variable].dtype} of shape {place.shape}"
                for name, place in flat.places.items()
            },
        )
    there = {}
    for name, each in tables.items():
        initializer = shards_of(each).spec.initializer
        there[name] = _table(WantedTable(each.dim, each.rows, computed(each.dtype), initializer))
    yield from _compared({name: _table(each) for name, each in wanted.tables.items()}, there)
    yield from _compared(wanted.local, local)


def _kept_otherwise(
    strategy: ParameterServerStrategy,
    tables: Mapping[str, Embedding],
    wanted: WantedModel,
    options: Mapping[str, Mapping[str, Any]],
) -> Iterator[Difference]:
    """Yield the tables for which options were given, and which are not kept so."""
    for name, own in options.items():
        if own:
            there = shards_of(tables[name]).spec
            form = there.name, there.dim, there.rows, there.initializer, there.optimizer
            whole = {"dtype": wanted.tables[name].dtype, **own}
            here = embedding_spec(strategy.__psnb_shards__, *form, **whole)
            yield from _compared({name: kept(here)}, {name: kept(there)})


def _compared(needed: Mapping[str, str], has: Mapping[str, str]) -> Iterator[Difference]:
    for name, what in needed.items():
        if name not in has:
            yield "missing there", f"{_quoted(name)}, {what}"
        elif has[name] != what:
            yield "different", f"{_quoted(name)}: there {has[name]}, here {what}"
    for name, what in has.items():
        if name not in needed:
            yield "only there", f"{_quoted(name)}, {what}"


def _table(table: WantedTable) -> str:
    """Return what a table is: all that must be the same."""
    if table.rows is not None:
        return f"table of {table.rows:,} rows of {table.dtype}[{table.dim}]"
    # The settings for rows of later ids.
    begins = as_initializer(table.initializer, "").describe()
    return f"table of any id, rows of {table.dtype}[{table.dim}] that begin by {begins}"


def _optimizers(
    wanted: WantedModel,
    flat: FlatVariables,
    tables: Mapping[str, Embedding],
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
) -> Iterator[_Optimizers]:
    """Yield the optimizers of parameters that the model was given some for, of equal ones once."""
    both: dict[tuple[str, Optimizer], tuple[Variable | Embedding, list[str]]] = {}
    if dense is not None:
        for name in wanted.parameters:
            variable = flat.variables[flat.places[name].variable]
            key = variable.name, optimizer_for(dense, name)
            both.setdefault(key, (variable, []))[1].append(name)
    if sparse is not None:
        for name in wanted.tables:
            both[tables[name].name, optimizer_for(sparse, name)] = tables[name], [name]
    for (_, given), (parameter, names) in both.items():
        live = None if parameter.optimizer is None else parameter.optimizer.current()
        yield _listed(names), parameter.name, live, given


def _others(several: Sequence[_Optimizers]) -> Iterator[Difference]:
    for names, _, live, given in several:
        if live is None or type(live) is not type(given):
            yield "different", f"the optimizer of {names}: there {live}, here {given}"
        elif live.slots != given.slots:
            state = f"there {', '.join(live.slots)}, here {', '.join(given.slots)}"
            yield "different", f"the state that the optimizer of {names} needs: {state}"


def _say(name: str, taken: ModelValues, optimizers: Sequence[_Optimizers]) -> None:
    logger.warning(
        "model %r goes on with what the strategy has of it: %s, %s, and the state of their "
        "optimizers; the values that it was given here are not used",
        name,
        counted(len(taken.flat.variables), "variable"),
        counted(len(taken.tables), "table"),
    )
    for names, parameter, live, given in optimizers:
        others = [
            f"{part.name}={there!r} (not {here!r})"
            for part in fields(given)
            if (there := getattr(live, part.name)) != (here := getattr(given, part.name))
        ]
        if others:
            logger.warning(
                "the optimizer of %s keeps what the servers have: %s. This changes it: "
                "strategy.parameters[%r].optimizer.%s = ...",
                names,
                ", ".join(others),
                parameter,
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
