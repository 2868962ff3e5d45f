"""TorchComputation: an exported PyTorch graph, run operator by operator.

``torch.export`` traces a module to a graph of ATen operators. Its own file format pickles a part,
and names functions that are looked up on loading; so the graph is JSON here, whose operators are
those of `torch_operators`, arithmetic of sizes, and ``lookup``, which asks a table for rows::

    {"inputs": [["feed", "x"], ["dense", "linear.weight"], …],
     "nodes": [["aten.linear.default", [{"node": 0}, {"node": 1}], {}], …],
     "outputs": [{"node": 7}]}

Nodes are numbered from the inputs on. Threads: several may use one.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from psnb._src.data.ragged import Ragged
from psnb._src.models.export.manifest import ModelFeed, ModelManifest
from psnb._src.models.export.model_state import Computation
from psnb._src.models.export.tables import StoredTable
from psnb._src.models.export.torch_operators import checked, is_allowed
from psnb._src.utils.sealed_json import require, typed

PROGRAM = "program.torch.json"
"""The file of the graph."""

OPERATORS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem")
    },
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{"sym_max": max, "sym_min": min, "sym_float": float, "sym_not": operator.not_},
}
"""Arithmetic of sizes, by the names of Python's and PyTorch's functions."""

_NAME = re.compile(r"aten\.([a-z_][a-z_0-9]*)\.([A-Za-z_0-9]+)", re.ASCII)
_KINDS: dict[str, Any] = {
    kind: {
        str(each).removeprefix("torch."): each
        for each in vars(torch).values()
        if isinstance(each, cls)
    }
    for kind, cls in (("dtype", torch.dtype), ("memory_format", torch.memory_format))
}
_KINDS["layout"] = {"strided": torch.strided}
"""Arguments other than numbers, by kind and name; no sparse tensors, which nothing checks."""

for _name in [name for name in _KINDS["dtype"] if re.match("q|bits|u?int[1-7]$", name)]:
    del _KINDS["dtype"][_name]  # of quantized tensors, and of parts of bytes


class TorchComputation(Computation):
    """A graph that was loaded.

    Parameters
    ----------
    inputs : sequence
        For each input the name of a dense parameter, or the feed and its part.
    dense : mapping of str to numpy.ndarray
        The dense parameters.
    nodes : sequence of (callable, args, kwargs)
        What is called, in order.
    outputs : sequence of int
        The nodes that are returned.
    """

    def __init__(
        self,
        inputs: Sequence[str | tuple[str, str]],
        dense: Mapping[str, np.ndarray],
        nodes: Sequence[tuple[Any, Any, Any]],
        outputs: Sequence[Any],
    ) -> None:
        self._inputs, self._nodes, self._outputs = tuple(inputs), tuple(nodes), outputs
        used = (each for each in self._inputs if isinstance(each, str))
        super().__init__(used, dense, lambda array: torch.from_numpy(array.copy()))

    def __call__(
        self, feeds: Mapping[str, np.ndarray | Ragged], tables: Mapping[str, StoredTable]
    ) -> list[np.ndarray]:
        """Return the arrays of all fetches."""
        found: list[Any] = [
            self._dense[each] if isinstance(each, str) else _tensor(feeds, *each)
            for each in self._inputs
        ]
        with torch.inference_mode():
            for call, args, kwargs in self._nodes:
                given = _filled(args, found)
                if isinstance(call, str):
                    found.append(torch.from_numpy(tables[call].lookup(given[0].numpy())))
                else:
                    found.append(call(*given, **_filled(kwargs, found)))
        return [found[at].numpy() for at in self._outputs]


class _NodeNumber(int):
    """The number of a node, in an argument."""


def _filled(given: Any, found: Sequence[Any]) -> Any:
    """Return an argument with the results of nodes."""
    kind = type(given)
    if kind is _NodeNumber:
        return found[given]
    if kind is list:
        return [_filled(each, found) for each in given]
    if kind is dict:
        return {name: _filled(each, found) for name, each in given.items()}
    return given


def _tensor(feeds: Mapping[str, np.ndarray | Ragged], name: str, part: str) -> torch.Tensor:
    given = feeds[name]
    if isinstance(given, Ragged):
        given = given.values if part == "values" else given.offsets[:-1]
    # A copy where it is not writable: torch cannot say that memory is not.
    return torch.from_numpy(np.require(given, requirements=["C", "W"]))


class _Graph(Struct, forbid_unknown_fields=True):
    inputs: list[list[str]]
    nodes: list[tuple[str, list[Any], dict[str, Any]]]
    outputs: list[Any]


def load(
    manifest: ModelManifest,
    programs: Mapping[str, bytes],
    dense: Mapping[str, np.ndarray],
    tables: Mapping[str, StoredTable],
) -> TorchComputation:
    """Return the computation of a model.

    Raises
    ------
    ValueError
        If its parts do not fit each other.
    """
    require(PROGRAM in programs, f"{PROGRAM} is missing")
    graph = typed(json.loads(programs[PROGRAM]), _Graph)
    feeds = {feed.name: feed for feed in manifest.feeds}
    inputs = [_input(each, feeds, dense) for each in graph.inputs]
    nodes = []
    for number, (called, given, named) in enumerate(graph.nodes, len(inputs)):
        args = [_argument(arg, number) for arg in given]
        kwargs = {name: _argument(arg, number) for name, arg in named.items()}
        nodes.append((_called(called, args, kwargs, tables), args, kwargs))
    outputs = [_argument(each, len(inputs) + len(nodes)) for each in graph.outputs]
    good = len(outputs) == len(manifest.fetches) and all(type(e) is _NodeNumber for e in outputs)
    require(good, "its program has other outputs than its fetches")
    return TorchComputation(inputs, dense, nodes, outputs)


def _input(
    given: list[str], feeds: Mapping[str, ModelFeed], dense: Mapping[str, np.ndarray]
) -> Any:
    match given:
        case ["dense", name] if name in dense:
            return name
        case ["feed", name] if name in feeds and not feeds[name].ragged:
            return name, ""
        case ["feed", name, ("values" | "offsets") as part] if name in feeds:
            require(feeds[name].ragged, f"feed {name!r:.80} has no bags")
            return name, part
    raise ValueError(f"an input of its program is {given!r:.80}")


def _argument(given: Any, number: int) -> Any:
    """Return an argument of a node, with what JSON cannot hold."""
    match given:
        case None | bool() | int() | float() | str():
            return given
        case list():
            return [_argument(each, number) for each in given]
        case {"node": int(at), **rest} if not rest and 0 <= at < number:
            return _NodeNumber(at)
        case {"float": ("inf" | "-inf" | "nan") as name, **rest} if not rest:
            return float(name)
        case {"device": "cpu", **rest} if not rest:
            return torch.device("cpu")
        case dict() if len(given) == 1:
            ((kind, name),) = given.items()
            if isinstance(name, str) and name in _KINDS.get(kind, ()):
                return _KINDS[kind][name]
    raise ValueError(f"an argument in its program is {given!r:.80}")


def _called(
    name: str, args: list[Any], kwargs: Mapping[str, Any], tables: Mapping[str, StoredTable]
) -> Any:
    if name == "lookup":
        good = len(args) == 2 and type(args[0]) is _NodeNumber and not kwargs
        require(good and args[1] in tables, f"a lookup in its program is {args!r:.80}")
        return args.pop()
    if name in OPERATORS:
        return OPERATORS[name]
    match = _NAME.fullmatch(name)
    found = getattr(getattr(torch.ops.aten, match[1], None), match[2], None) if match else None
    if not isinstance(found, torch._ops.OpOverload) or not is_allowed(found):
        raise ValueError(
            f"its program calls {name!r:.80}, which is not an operator of a model: psnb.export of "
            "this version writes no such program; trust none that has it"
        )
    given = dict(zip((each.name for each in found._schema.arguments), args, strict=False))
    for kind in ("dtype", "layout", "memory_format", "device"):  # PyTorch does not check numbers
        number = isinstance({**given, **kwargs}.get(kind), int)
        require(not number, f"the {kind} of {name!r:.80} in its program is a number")
    return checked(found)
