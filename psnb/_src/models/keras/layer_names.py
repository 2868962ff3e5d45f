"""Names that Keras gives to layers: they depend on what was built before in the process. Pure.

A layer without a name is called by its class and a number: ``dense``, ``dense_1``. The same
model, built once more, has other numbers; but in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any

import keras
from keras.src.utils.naming import to_snake_case
from msgspec import structs

from psnb._src.client.model_records import ModelRecord, ModelRecords
from psnb._src.models.keras.split import every_layer
from psnb._src.models.placing import WantedModel
from psnb.errors import ConfigurationError

_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?", re.ASCII)


def numbered_kinds(model: Any) -> set[str]:
    """Return what Keras calls the layers of a model that have no name, without numbers.

    Including those of ``Embedding``: a split model has lookups in their places.
    """
    kinds = {type(each) for each in every_layer(model)}
    return {to_snake_case(kind.__name__) for kind in (*kinds, keras.layers.Embedding)}


def name_there(model: Any, models: ModelRecords) -> str:
    """Return what a model is called on the servers: as from before, if its name has no meaning."""
    kind = to_snake_case(type(model).__name__)

    def numbered(name: str) -> bool:
        return next(_parts(name))[0] == kind

    if not numbered(model.name) or model.name in models.all():
        return str(model.name)
    there = [name for name in models.waiting() if numbered(name)]
    return there[0] if len(there) == 1 else str(model.name)


def named_alike(kinds: Collection[str], record: ModelRecord, wanted: WantedModel) -> ModelRecord:
    """Return what was placed with the names that a model has, if they differ by numbers alone.

    Parameters
    ----------
    kinds : collection of str
        From `numbered_kinds` of the model.
    record : ModelRecord
        What was placed.
    wanted : WantedModel
        What the model needs.

    Returns
    -------
    ModelRecord
        As given, unless all names fit, and have the order in which the arrays lie there.

    Raises
    ------
    ConfigurationError
        If the names are the same, but names that Keras may have given are in another order.
    """
    arrays_ = (name for several in wanted.arrays.values() for name in several)
    here = [*arrays_, *wanted.tables, *wanted.local]
    there = [
        *(name for arrays in record.variables.values() for name, _ in arrays),
        *record.tables,
        *record.local,
    ]
    position = {name: number for number, name in enumerate(here)}
    if set(here) == set(there):
        numbered = {n for n in here if any(kind in kinds for kind, _ in _parts(n))}
        for names in _orders(record):
            for name, after in pairwise(name for name in names if name in numbered):
                if position[name] > position[after]:
                    raise ConfigurationError(
                        f"{name!r} and {after!r} have changed places since the model was placed, "
                        "and Keras numbers layers as they are made: it cannot be known which of "
                        "them is which. Make them in the order from before"
                    )
        return record
    own = dict(zip(_renumbered(here, kinds), here, strict=True))
    called = {
        name: own.get(plain, "")
        for name, plain in zip(there, _renumbered(there, kinds), strict=True)
    }
    if sorted(called.values()) != sorted(here):
        return record
    for names in _orders(record):
        places = [position[called[name]] for name in names]
        if places != sorted(places):
            return record
    return structs.replace(
        record,
        arrays={
            kind: {
                variable: tuple((called[name], shape) for name, shape in arrays)
                for variable, arrays in variables.items()
            }
            for kind, variables in record.arrays.items()
        },
        tables={called[name]: table for name, table in record.tables.items()},
        local={called[name]: value for name, value in record.local.items()},
    )


def _orders(record: ModelRecord) -> Iterator[list[str]]:
    """Yield names that were placed in the order of the model.

    The weights in each variable, the first of each variable, and the tables. Weights that are
    clipped each by itself have variables of their names, which come after all others.
    """
    for variables in record.arrays.values():
        first: dict[bool, list[str]] = {}
        for variable, arrays in variables.items():
            names = [name for name, _ in arrays]
            yield names
            first.setdefault(variable.endswith(f".{names[0]}"), []).append(names[0])
        yield from first.values()
    yield [*record.tables]


def _renumbered(names: Iterable[str], kinds: Collection[str]) -> list[str]:
    """Return names with numbers that begin at 0, for each kind, in their order."""
    paths = [list(_parts(name)) for name in names]
    numbers: dict[str, set[int]] = {}
    for path in paths:
        for kind, number in path:
            numbers.setdefault(kind, set()).add(number)
    ranks = {kind: sorted(several) for kind, several in numbers.items()}
    return [
        "/".join(
            f"{kind}_{ranks[kind].index(number) if kind in kinds else number}"
            for kind, number in path
        )
        for path in paths
    ]


def _parts(name: str) -> Iterator[tuple[str, int]]:
    for part in name.split("/"):
        match = _NUMBERED.fullmatch(part)
        assert match is not None
        yield match[1], -1 if match[2] is None else int(match[2])
