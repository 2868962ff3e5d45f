"""TableWeight: stands in a module for the weight of an embedding whose rows are on servers.

It is a parameter of the module like others, for all that refers to it: its embeddings look up rows,
and all else that computes with it gets all rows, which come when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from psnb._src.models.torch.model_pass import ModelPass, current_pass
from psnb._src.server.tables.initializers import Initializer
from psnb.errors import ConfigurationError

_FIELDS = (
    *("shape", "dtype", "device", "layout", "requires_grad", "ndim", "is_leaf", "grad_fn", "names"),
    *("output_nr", "_version", "name", "itemsize", "nbytes", "is_cuda", "is_cpu", "is_meta"),
    *("is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested", "is_mps", "is_xpu"),
    *("_backward_hooks", "_post_accumulate_grad_hooks"),
)
_METHODS = (
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point"),
    *("is_complex", "is_signed", "is_contiguous", "is_inference", "stride", "storage_offset"),
    *("get_device", "is_shared", "__len__", "__hash__"),
)
_FORM = {getattr(Tensor, n).__get__ for n in _FIELDS if hasattr(Tensor, n)} | {
    *(getattr(Tensor, n) for n in _METHODS),
    *(getattr(torch, n) for n in ("numel", "is_floating_point", "is_complex", "is_inference")),
}
"""Functions that need no rows."""


class TableWeight(Tensor):
    """A parameter without values.

    Parameters
    ----------
    table : str
        The parameter's name, by which the table is known.
    like : torch.Tensor
        Whose shape, dtype and attributes it has.
    device : torch.device, optional
        Where rows come to; by default the CPU.

    Attributes
    ----------
    owner : object
        Whose passes it looks up with; None where it only travels.
    """

    table: str
    owner: object

    def __new__(cls, table: str, like: Tensor, device: torch.device | None = None) -> TableWeight:
        return _made(table, tuple(like.shape), like.dtype, str(device or "cpu"), vars(like))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<rows of table {self.table!r}, {tuple(self.shape)}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> TableWeight:
        made: TableWeight = memo.setdefault(id(self), TableWeight(self.table, self, self.device))
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        own = {name: value for name, value in vars(self).items() if name != "owner"}
        return _made, (self.table, tuple(self.shape), self.dtype, str(self.device), own)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute with the rows that are needed."""
        given = dict(kwargs or {})
        if func in _FORM:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        if func is torch.autograd.grad:
            raise ConfigurationError(
                "torch.autograd.grad with respect to the weight of an embedding whose rows are on "
                "servers: let the model return embedding(ids), and take the gradient of that"
            )
        own, weight = _OWN.get(func, (None, 0))
        if own is not None and isinstance(args[weight], TableWeight):
            return own(*args, **given)
        return func(*tree_map(_whole, args), **tree_map(_whole, given))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raise ConfigurationError: a call that comes here has gone around the methods above."""
        raise ConfigurationError(
            f"{func} takes the weight of an embedding whose rows are on servers in a way that psnb "
            "cannot follow: let it take embedding(ids), or weight + 0, all rows"
        )


def _made(
    table: str, shape: tuple[int, ...], dtype: torch.dtype, device: str, own: Mapping[str, Any]
) -> TableWeight:
    found: TableWeight = Tensor._make_wrapper_subclass(
        TableWeight, shape, dtype=dtype, device=torch.device(device), requires_grad=True
    )
    vars(found).update(own)
    found.table, found.owner = table, None
    found._is_param = True  # so that it counts as an nn.Parameter
    return found


def _pass(weight: TableWeight) -> ModelPass:
    return current_pass(weight.owner, weight.table)


def _whole(value: Any) -> Any:
    """Return all rows in place of a weight."""
    if not isinstance(value, TableWeight):
        return value
    rows = _pass(value).whole(value.table)
    return rows if value.requires_grad else rows.detach()


def _looked_up(ids: Tensor, weight: TableWeight, **options: Any) -> Tensor:
    """Do what ``functional.embedding`` does, with the rows of the ids alone."""
    rows, position = _rows(weight, ids, options)
    return functional.embedding(position, rows, **options)


def _combined(ids: Tensor, weight: TableWeight, **options: Any) -> Tensor:
    """Do what ``functional.embedding_bag`` does, with the rows of the ids alone."""
    rows, position = _rows(weight, ids, options)
    if options.get("offsets") is not None:
        options["offsets"] = options["offsets"].long()
    return functional.embedding_bag(position, rows, **options)


def _rows(weight: TableWeight, ids: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the rows of ids, and where each is; adapt the options to them."""
    if options.get("max_norm") is not None:
        raise ConfigurationError(
            f"{weight.table!r} is looked up with max_norm=, which shrinks rows whenever they are: "
            "with several workers that would be lost or done twice. Leave it out"
        )
    found = _pass(weight)
    rows, position = found.look_up(weight.table, ids)
    padding = options.get("padding_idx")
    if padding is not None and padding < 0:
        padding += len(weight)
    options["padding_idx"] = found.find(weight.table, padding)
    options["sparse"] = False  # its gradient is the rows' gradient as it is
    return rows if weight.requires_grad else rows.detach(), position


def _data(weight: TableWeight) -> Tensor:
    # `.data` would hide that it is written to.
    found: Tensor = _whole(weight).detach()
    return found


def _gradient(weight: TableWeight) -> None:
    if _pass(weight).has_gradient(weight.table):
        raise ConfigurationError(
            f"{weight.table!r} has no gradient as a whole: a step computes those of the rows that "
            "it uses. model.parameters() and model.named_parameters(), of the distributed model, "
            "yield these rows with their gradients"
        )


def _forget_gradient(weight: TableWeight, value: Tensor | None) -> None:
    if value is not None:
        _refuse(weight)


def _let_learn(weight: TableWeight, requires_grad: bool = True) -> TableWeight:
    with torch._C.DisableTorchFunctionSubclass():
        weight.requires_grad = requires_grad
    return weight


def _refuse(weight: TableWeight, *args: Any, **kwargs: Any) -> Any:
    raise ConfigurationError(
        f"{weight.table!r}, whose rows are on servers, cannot be changed by a module, nor can what "
        "happens to its gradient: do so before psnb.torch.distribute, or with "
        "model.load_state_dict"
    )


_OWN: dict[Any, tuple[Callable[..., Any], int]] = {
    functional.embedding: (_looked_up, 1),
    functional.embedding_bag: (_combined, 1),
    Tensor.data.__get__: (_data, 0),  # type: ignore[attr-defined]
    Tensor.data.__set__: (_refuse, 0),  # type: ignore[attr-defined]
    Tensor.grad.__get__: (_gradient, 0),  # type: ignore[union-attr]
    Tensor.grad.__set__: (_forget_gradient, 0),  # type: ignore[union-attr]
    Tensor.requires_grad.__set__: (_let_learn, 0),  # type: ignore[attr-defined]
    Tensor.requires_grad_: (_let_learn, 0),
    Tensor.register_hook: (_refuse, 0),
    Tensor.register_post_accumulate_grad_hook: (_refuse, 0),
    Tensor.retain_grad: (_refuse, 0),
}
"""By function of torch: the one in its place, and which of its arguments is the weight."""

IDS, ROWS = "ids", "rows"
"""The parts of the state of a table of any id."""


class HashedEmbedding(nn.Module):
    """Rows for any 64-bit id, which are made when an id is first seen in training.

    Part of a module that `psnb.torch.distribute` takes, which makes a table with ``rows=None`` of
    it. On its own it only looks up: in a module that was loaded with the distributed model's
    ``state_dict()``, it gives what was learned, and zeros for ids that were not seen.

    Parameters
    ----------
    dim : int
        Floats a row.
    initializer : Initializer or float, optional
        How a row starts, as for `ParameterServerStrategy.embedding`.
    """

    ids: Tensor
    rows: Tensor
    table: str
    owner: Any

    def __init__(self, dim: int, initializer: Initializer | float | None = None) -> None:
        super().__init__()
        self.dim, self.initializer = int(dim), initializer
        self.table, self.owner = "", None  # of a distributed module: whose passes it looks up with
        self.register_buffer("ids", torch.empty(0, dtype=torch.int64))  # ascending
        self.register_buffer("rows", torch.empty(0, self.dim))

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        held = f"table {self.table!r}" if self.table else f"{len(self.ids)} rows"
        return f"dim={self.dim}, {held}"

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids of any shape; zeros for those without one."""
        if self.table:
            weight, position = current_pass(self.owner, self.table).look_up(self.table, ids)
            rows = weight.detach() if self.table in self.owner.frozen else weight
            return functional.embedding(position, rows)
        if not len(self.ids):
            return self.rows.new_zeros(*ids.shape, self.dim)
        wide = ids.long()
        at = torch.searchsorted(self.ids, wide).clamp_max(len(self.ids) - 1)
        known = (self.ids[at] == wide).unsqueeze(-1)
        return self.rows[at] * known

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The number of rows is the state's.
        for name in (IDS, ROWS):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
