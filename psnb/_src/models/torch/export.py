"""Exports a module, for `psnb._src.models.export.torch_program` to run without its code.

``torch.export`` traces the module, with lookups as operators of their own and the number of
examples as a symbol: one graph is for batches of any size, and nothing is compiled when it runs.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from psnb._src.client.embedding import Embedding
from psnb._src.models.export.exported import Exported, returned, tracing
from psnb._src.models.export.manifest import DenseSources, ModelFeed
from psnb._src.models.export.torch_operators import is_allowed
from psnb._src.models.export.torch_program import OPERATORS, PROGRAM
from psnb._src.models.table_rows import table_source
from psnb._src.models.torch.module_graph import span_of
from psnb._src.models.torch.tables import HashedEmbedding, TableWeight
from psnb._src.models.torch.tensors import TensorBags, as_torch, parts_of, rebuilt
from psnb._src.utils.arrays import frame_text
from psnb.errors import ConfigurationError, InvalidArrayError

# Stands in a traced graph for the lookup of rows. By its tag, ids that are constants of the module
# are looked up when the graph runs: of other operators, torch would compute the result now.
torch.library.define(
    "psnb::lookup",
    "(Tensor ids, str table, int dim, bool double) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


@torch.library.register_fake("psnb::lookup")
def _(ids: Tensor, table: str, dim: int, double: bool) -> Tensor:
    return ids.new_empty((*ids.shape, dim), dtype=torch.float64 if double else torch.float32)


_IDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class TracedEmbedding(nn.Module):
    """In place of an embedding whose rows are in a table.

    Parameters
    ----------
    table : Embedding
        The table.
    """

    def __init__(self, table: Embedding) -> None:
        super().__init__()
        self._given = table.name, table.dim, table.dtype == np.float64

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids of any shape."""
        if ids.dtype not in _IDS:
            raise InvalidArrayError(
                f"psnb.export: example=: the ids of {self._given[0]!r} are of {ids.dtype}: give "
                "integers, as in training"
            )
        found: Tensor = torch.ops.psnb.lookup(ids, *self._given)
        return found


class _TracedEmbeddingBag(TracedEmbedding):
    """In place of an ``EmbeddingBag``: sums by bag, in operators that take any sizes."""

    def __init__(self, table: Embedding, served: nn.EmbeddingBag) -> None:
        super().__init__(table)
        self._mode, self._padding = served.mode, served.padding_idx
        self._last = served.include_last_offset

    def forward(
        self,
        input: Tensor,  # noqa: A002  # as torch calls it
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        rows = super().forward(input)
        if offsets is None:
            count, width = input.shape
            bag = torch.arange(count).repeat_interleave(width, output_size=count * width)
        else:
            starts = offsets[:-1] if self._last else offsets
            count, places = starts.shape[0], torch.arange(input.shape[0], dtype=starts.dtype)
            bag = torch.bucketize(places, starts, right=True) - 1
        rows, ids = rows.reshape(-1, rows.shape[-1]), input.reshape(-1)
        real = torch.ones_like(ids, dtype=torch.bool)
        if self._padding is not None:
            real = ids != self._padding
        found = rows.new_zeros((count, rows.shape[1]))
        if self._mode == "max":
            least = torch.full_like(found, -math.inf)
            masked = torch.where(real[:, None], rows, -math.inf)
            largest = least.scatter_reduce(0, bag[:, None].expand_as(rows), masked, "amax")
            return torch.where(torch.isinf(largest) & (largest < 0), 0.0, largest)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1)
        found = found.index_add(0, bag, rows * real[:, None])
        if self._mode == "mean":
            counts = rows.new_zeros(count).index_add(0, bag, real.to(rows.dtype))
            found = found / counts.clamp_min(1)[:, None]
        return found


class _FedTensors(NamedTuple):
    """A feed, and where its tensors are among the inputs of the graph; stands for these there."""

    feed: ModelFeed
    first: int


class _Flat(nn.Module):
    """Takes the tensors of all feeds, and returns the tensors of all outputs."""

    def __init__(self, module: nn.Module, given: Any, results: list[Any]) -> None:
        super().__init__()
        self.module, self._given, self._results = module, given, results

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        def filled(each: Any, _: str) -> Any:
            if not isinstance(each, _FedTensors):
                return each
            first = tensors[each.first]
            return TensorBags(first, tensors[each.first + 1]) if each.feed.ragged else first

        flat: list[Tensor] = []

        def number(each: Any, _: str) -> Any:
            """Return the number of a tensor, which is added to a list."""
            if isinstance(each, Tensor):
                flat.append(each)
                return len(flat) - 1
            if each is None:
                return None
            raise ConfigurationError(
                f"psnb.export: forward returns {type(each).__name__}; tensors in dicts, lists and "
                "tuples can be exported"
            )

        args, kwargs = _mapped(filled, self._given)
        self._results.append(_mapped(number, self.module(*args, **kwargs)))
        return flat


def _normed(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.ndim) if axis != dim]  # -1 is none, in that operator
    return v * (g / torch.linalg.vector_norm(v, 2, axes, keepdim=dim >= 0))


_DECOMPOSED: dict[Any, Any] = {torch.ops.aten._weight_norm.default: _normed}
"""Operators that a graph has in parts, which loaded models may call."""

_DECIDES = (
    ". forward decides by the values of a tensor, which a program cannot: choose by torch.where or "
    "by shapes (nn.TransformerEncoder compares the values of mask= unless it is given is_causal=)"
)


def exported(
    module: nn.Module, tables: Mapping[str, Embedding], example: Any, sources: DenseSources
) -> Exported:
    """Return what is written of a module.

    Parameters
    ----------
    module : torch.nn.Module
        With lookups in place of embeddings, and its values; it is changed.
    tables : mapping of str to Embedding
        By the names that lookups have.
    example : object
        The arguments of ``forward``: a tuple; or a mapping by name; or the only one.
    sources : DenseSources
        Where its values are on the servers, by the names that they have in the module.

    Raises
    ------
    ConfigurationError
        If it cannot be exported for batches of any size.
    """
    module = _traceable(module, tables).eval()
    given, places, tensors = _feeds(module, example)
    results: list[Any] = []  # no attribute: attributes are restored after the tracing
    flat = _Flat(module, given, results)

    def hint(error: Exception) -> str:
        return _DECIDES if isinstance(error, GuardOnDataDependentSymNode) else ""

    with tracing(type(module).__name__, hint), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about itself
        program = torch.export.export(flat, tuple(tensors), dynamic_shapes=(_dims(places),))
        program = program.run_decompositions(_DECOMPOSED)
    graph, dense, forms = _graph(program, places)
    form, fetches = returned(results[-1], forms)
    used = {entry[1] for entry in graph["inputs"] if entry[0] == "feed"}
    return Exported(
        "torch",
        [place.feed for place in places if place.feed.name in used],
        fetches,
        form,
        dense,
        {table.name: table_source(table) for table in tables.values()},
        {PROGRAM: json.dumps(graph).encode()},
        {},
        {"torch": torch.__version__},
        sources,
    )


def _traceable(module: nn.Module, tables: Mapping[str, Embedding]) -> nn.Module:
    """Let the embeddings of a module look up in a way that can be traced."""
    for each in list(module.modules()):
        weight = each._parameters.get("weight")
        if isinstance(each, HashedEmbedding):
            _trace(each, TracedEmbedding(tables[each.table]))
        elif isinstance(weight, TableWeight):
            table = tables[weight.table]
            bag = isinstance(each, nn.EmbeddingBag)
            del each._parameters["weight"]
            _trace(each, _TracedEmbeddingBag(table, each) if bag else TracedEmbedding(table))
        elif type(each).forward is nn.TransformerEncoder.forward:
            kind = type(each)
            each.__class__ = type(kind.__name__, (_TracedEncoder, kind), {})
    return module


class _TracedEncoder(nn.TransformerEncoder):
    """An encoder that gives zeros for padding, as torch's own does where it computes no gradients.

    There it leaves out padding, if that is at the end of each sequence; the export computes it.
    """

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        leaves_out = self.use_nested_tensor and torch.backends.mha.get_fastpath_enabled()
        if not leaves_out or mask is not None or src_key_padding_mask is None or src.dim() != 3:
            return super().forward(src, mask, src_key_padding_mask, is_causal)
        found = src
        for layer in self.layers:
            found = layer(
                found, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal)
            )
        padded = src_key_padding_mask.bool()
        at_end = (padded[:, 1:] | ~padded[:, :-1]).all()
        found = torch.where((padded & at_end)[..., None], 0.0, found)
        return found if self.norm is None else self.norm(found)


def _trace(module: nn.Module, traced: TracedEmbedding) -> None:
    """Let a module, which keeps its hooks, do what another one does."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return traced.forward(*args, **kwargs)

    def weight(self: nn.Module) -> Tensor:
        raise ConfigurationError(
            "psnb.export: forward uses all rows of an embedding, which a model that is exported "
            "only looks up by ids"
        )

    vars(module).pop("forward", None)  # that no compiler follows
    kind = type(module)
    own = {"forward": forward, "weight": property(weight), "__module__": kind.__module__}
    module.__class__ = type(kind.__name__, (kind,), own)


def _feeds(module: nn.Module, example: Any) -> tuple[Any, list[_FedTensors], list[Tensor]]:
    """Return the arguments with holes, the feeds, and the tensors that are in the holes."""
    if example is None:
        raise ConfigurationError(
            "psnb.export of a PyTorch module needs example=, the arguments of forward: a tuple, or "
            "a dict by name"
        )
    bound = _bound(inspect.signature(module.forward), as_torch(example))
    places: list[_FedTensors] = []
    tensors: list[Tensor] = []

    def hole(value: Any, name: str) -> Any:
        bags = isinstance(value, TensorBags)
        if not bags and not isinstance(value, Tensor):
            return value
        first = len(tensors)
        tensors.extend((value.input, value.offsets.long()) if bags else (value,))
        dtype = str(tensors[first].dtype).removeprefix("torch.")
        if bags:
            feed = ModelFeed(name, dtype, (None,), "ragged")
        else:
            shape = (None, *value.shape[1:]) if value.ndim else ()
            # As many as the first feed has, which are the examples.
            like = tensors[1 if places and places[0].feed.ragged else 0]
            alike = not value.ndim or len(value) == (len(like) if like.ndim else 0)
            feed = ModelFeed(name, dtype, shape, "examples" if alike else "any")
        places.append(_FedTensors(feed, first))
        return places[-1]

    sole = len(bound.arguments) == 1
    for name, value in bound.arguments.items():
        inner = sole and _has_names(value)
        bound.arguments[name] = _mapped(hole, value, "" if inner else name)
    # Two elements at least: one is taken for a size that never changes.
    long = [
        each.repeat(2, *[1] * (each.ndim - 1)) if each.ndim and len(each) < 2 else each
        for each in tensors
    ]
    return (bound.args, bound.kwargs), places, long


def _bound(signature: inspect.Signature, given: Any) -> inspect.BoundArguments:
    """Return an example as the arguments of ``forward``, or as the one that is a batch."""
    batch: tuple[Any, dict[str, Any]] = ((given,), {})
    ways = [batch]
    if isinstance(given, Mapping):
        ways = [((), dict(given)), batch]
    elif isinstance(given, tuple) and not isinstance(given, TensorBags):
        named = [((), parts_of(given) or {}), batch] if _has_names(given) else []
        ways = [*named, (given, {})]
    if wrong := frame_text(given):
        raise ConfigurationError(f"psnb.export: example=: {wrong}")
    failures = []
    for args, kwargs in ways:
        try:
            return signature.bind(*args, **kwargs)
        except TypeError as error:
            failures.append(error)
    raise ConfigurationError(
        f"psnb.export: example= does not fit forward{signature}: {failures[0]}"
    ) from failures[0]


def _has_names(value: Any) -> bool:
    """Return whether the parts of a structure have names: a mapping, named tuple or data class."""
    parts = None if isinstance(value, TensorBags) else parts_of(value)
    return parts is not None and (not isinstance(value, tuple | list) or hasattr(value, "_fields"))


def _mapped(function: Callable[[Any, str], Any], value: Any, name: str = "") -> Any:
    """Return the same structure of what a function makes of its leaves and of their names."""
    parts = None if isinstance(value, TensorBags | _FedTensors) else parts_of(value)
    if parts is None:
        return function(value, name)
    made = {
        key: _mapped(function, each, f"{name}.{key}" if name else str(key))
        for key, each in parts.items()
    }
    return made if isinstance(value, Mapping) else rebuilt(value, made)


def _dims(places: Sequence[_FedTensors]) -> tuple[Any, ...]:
    """Return the axes whose sizes depend on the batch."""
    examples, dims = torch.export.Dim("examples"), []
    for number, (feed, _) in enumerate(places):
        other = torch.export.Dim(f"size_{number}")
        if feed.ragged:
            dims += [{0: other}, {0: examples}]
        else:
            first = examples if feed.holds == "examples" else other
            dims.append({0: first} if feed.shape else {})
    return tuple(dims)


_Form = tuple[str, Sequence[Any]]


def _graph(
    program: Any, places: Sequence[_FedTensors]
) -> tuple[dict[str, list[Any]], dict[str, np.ndarray], list[_Form]]:
    """Return the graph as JSON can hold it, the dense parameters, and the forms of its outputs."""
    fed: list[list[str]] = []
    for feed, _ in places:
        parts = [["values"], ["offsets"]] if feed.ragged else [[]]
        fed += [["feed", feed.name, *part] for part in parts]
    program.graph.eliminate_dead_code(lambda node: node.op != "call_function" or _asserts(node))
    state = program.state_dict
    values = {**program.constants, **state}
    numbers: dict[Any, int] = {}
    inputs: list[list[str]] = []
    nodes: list[Any] = []
    dense: dict[str, np.ndarray] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    given = iter(fed)
    outputs: list[Any] = []
    for node in program.graph.nodes:  # first what they are given
        if node.op == "placeholder":
            target = specs[node.name].target
            if target in program.constants:
                # It may be a parameter or buffer, to which the module has a reference.
                span = span_of(values[target])
                same = (name for name, each in state.items() if span and span_of(each) == span)
                target = next(same, target)
            entry = next(given) if target is None else ["dense", target.removeprefix("module.")]
            if node.users:
                if target is not None:
                    dense[entry[1]] = values[target].detach().cpu().numpy()
                inputs.append(entry)
                numbers[node] = len(numbers)
        elif node.op == "call_function" and not _asserts(node):
            name, args = _called(node)
            kwargs = {key: _written(each, numbers) for key, each in node.kwargs.items()}
            if name == "aten.zeros.default":
                kwargs.pop("memory_format", None)  # of ``empty``
            nodes.append([name, [_written(each, numbers) for each in args], kwargs])
            numbers[node] = len(numbers)
        elif node.op == "output":
            outputs = list(node.args[0])
    found = [node.meta["val"] for node in outputs]
    forms = [(str(each.dtype).removeprefix("torch."), each.shape) for each in found]
    ends = [{"node": numbers[node]} for node in outputs]
    return {"inputs": inputs, "nodes": nodes, "outputs": ends}, dense, forms


def _asserts(node: Any) -> bool:
    """Return whether a node only checks what was known when it was traced."""
    return "assert" in str(node.target) or "sym_constrain" in str(node.target)


_ZEROS = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
"""Replaces uninitialized memory, so that what a model computes from it is well-defined."""


def _called(node: Any) -> tuple[str, list[Any]]:
    target = node.target
    if target is torch.ops.psnb.lookup.default:
        return "lookup", list(node.args[:2])
    if isinstance(target, torch._ops.OpOverload):
        name = _ZEROS.get(str(target), str(target))
        allowed = str(target) in _ZEROS or is_allowed(target)
    else:
        name = getattr(target, "__name__", str(target))
        allowed = name in OPERATORS
    if allowed:
        return name, list(node.args)
    raise ConfigurationError(
        f"psnb.export: the module calls {target}, which is not an operator of ATen that can be "
        "exported: those are listed in psnb/_src/models/export/torch_operators.txt. Write what "
        "it does with others, in forward; if you think that it belongs there (it changes nothing, "
        "and checks all of its arguments), report it"
    )


def _written(given: Any, numbers: Mapping[Any, int]) -> Any:
    """Return an argument as JSON can hold it."""
    if isinstance(given, torch.fx.Node):
        return {"node": numbers[given]}
    if isinstance(given, list | tuple):
        return [_written(each, numbers) for each in given]
    if isinstance(given, float) and not math.isfinite(given):
        return {"float": str(given)}
    if isinstance(given, torch.dtype | torch.layout | torch.memory_format):
        return {type(given).__name__: str(given).removeprefix("torch.")}
    if isinstance(given, torch.device):
        return {"device": "cpu"}
    return given
