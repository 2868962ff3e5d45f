"""Which operators of ATen an exported model may call, and with what arguments.

ATen has some 1,200 operators that change nothing. Some of them read or write outside of their
tensors when their arguments are forged, or return uninitialized memory: operators of sparse, nested
and quantized tensors, ``as_strided``, ``empty``, ``resize``, ``_unsafe_index``, gradients
(``…_backward``), packed sequences, ``segment_reduce``, ``ctc_loss``, ``fractional_max_pool2d``. To
forbid these by name was tried, and each release of PyTorch brings more. PyTorch's tags do not
separate them (``core`` has ``empty`` and ``as_strided``), and differ by release.

So ``torch_operators.txt`` is the list of what ``torch.export`` makes of models and of functions of
tensors (some 480 were exported), with their kin. Those that take indices, sizes or modes were
called with such as cannot be, in processes whose fresh memory was filled with one byte and then
with another one. What crashed, or gave other results, is not there, or its arguments are checked
here: it reads, writes or returns memory outside of its tensors when these fail (PyTorch 2.13 on a
CPU), or ends the process.

A name stands for all overloads that change nothing; ``name.overload`` for this one only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from psnb.errors import ExportError

_MOST = 1 << 62

Given = Mapping[str, Any]
"""The arguments of an operator, by name."""


def checked(called: Any) -> Callable[..., Any]:
    """Return an operator that checks its arguments, if PyTorch does not."""
    name = str(called._schema.name).partition("::")[2]
    return partial(_call, called, _CHECKS[name]) if name in _CHECKS else called


def _call(called: Any, check: Callable[[Given], bool], *args: Any, **kwargs: Any) -> Any:
    given = {each.name: each.default_value for each in called._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    try:
        good = check(given)
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _wrong(called) from error  # arguments of other kinds, or of other shapes
    if not good:
        raise _wrong(called)
    return called(*args, **kwargs)


def _wrong(called: Any) -> ExportError:
    return ExportError(
        f"the model calls {called} with arguments that cannot be: its memory would be left. If the "
        "batch is what the model was trained with, the model is damaged or forged: export it again"
    )


def _repeats(given: Given) -> bool:
    """Return whether there is room for all rows: negative repeats make it smaller."""
    repeats = given["repeats"]
    if not isinstance(repeats, Tensor) or not repeats.numel():
        return True
    return int(repeats.min()) >= 0 and int(repeats.max()) * repeats.numel() < _MOST


def _bags(given: Given) -> bool:
    """Return whether bags lie one behind the other, and within the indices."""
    if given["weight"].dim() != 2 or given["indices"].dim() != 1 or given["offsets"].dim() != 1:
        return False
    offsets, count = given["offsets"], given["indices"].numel()
    if not offsets.numel():
        return True
    ascend = not bool((offsets[1:] < offsets[:-1]).any())
    return ascend and int(offsets[0]) == 0 and int(offsets[-1]) <= count


def _lstm(given: Given) -> bool:
    """Return whether all layers have their arrays, and these fit each other; none is empty."""
    x, (hidden, cell) = given["input"], given["hx"]
    layers, ways = given["num_layers"], 2 if given["bidirectional"] else 1
    out, size = hidden.shape[2], cell.shape[2]
    batch = x.shape[0 if given["batch_first"] else 1]
    good = x.dim() == 3 and all(
        each.shape[:2] == (layers * ways, batch) and each.dim() == 3 for each in (hidden, cell)
    )
    expected: list[tuple[int, ...]] = []
    for number in range(layers * ways):
        width = x.shape[2] if number < ways else ways * out
        expected += [(4 * size, width), (4 * size, out)]
        expected += [(4 * size,)] * 2 if given["has_biases"] else []
        expected += [(out, size)] if out != size else []
    arrays = given["params"]
    return (
        good
        and bool(out and size)
        and [tuple(each.shape) for each in arrays] == expected
        and all(each.dtype == x.dtype for each in (hidden, cell, *arrays))
    )


def _channels(given: Given) -> bool:
    """Return whether each array has a number for each channel, and what it divides by is there."""
    count = given["input"].shape[1]
    names = ("weight", "bias", "running_mean", "running_var")
    arrays = [given[name] for name in names if given.get(name) is not None]
    there = given.get("running_mean") is not None and given.get("running_var") is not None
    return all(tuple(e.shape) == (count,) for e in arrays) and (
        there or bool(given.get("training"))
    )


def _attention(given: Given) -> bool:
    """Return whether each key has a value."""
    return bool(given["key"].shape[-2] == given["value"].shape[-2])


def _flash_attention(given: Given) -> bool:
    """Return whether all have the same heads, the mask fits, and there is something to divide."""
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    heads = {(*each.shape[:2], *each.shape[3:]) for each in (query, key, value)}
    scores = (*query.shape[:3], key.shape[2])
    fits = mask is None or torch.broadcast_shapes(mask.shape, scores) == scores
    full = all(each.shape[1] and each.shape[2] for each in (query, key, value))
    return query.dim() == 4 and len(heads) == 1 and fits and full and _attention(given)


def _modes(given: Given) -> bool:
    """Return whether the modes are known; with others, nothing is written."""
    return given["interpolation_mode"] in (0, 1, 2) and given["padding_mode"] in (0, 1, 2)


def _division(given: Given) -> bool:
    """Return whether all quotients are integers: the least one by -1 ends the process."""
    if given.get("rounding_mode") != "trunc":
        return True
    dividend, divisor = (torch.as_tensor(given[name]) for name in ("self", "other"))
    kind = torch.result_type(dividend, divisor)
    if kind.is_floating_point or kind.is_complex:
        return True
    # As for division: a single number takes the dtype of the other array.
    least = kind != torch.bool and bool((dividend.to(kind) == torch.iinfo(kind).min).any())
    return not (least and bool((divisor.to(kind) == -1).any()))


_CHECKS: dict[str, Callable[[Given], bool]] = {
    "_embedding_bag": _bags,
    "_native_batch_norm_legit": _channels,
    "_native_batch_norm_legit_functional": _channels,
    "_native_batch_norm_legit_no_training": _channels,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "div": _division,
    "divide": _division,
    "embedding_bag": _bags,
    "grid_sampler": _modes,
    "grid_sampler_2d": _modes,
    "grid_sampler_3d": _modes,
    "lstm": _lstm,
    "repeat_interleave": _repeats,
    "scaled_dot_product_attention": _attention,
}

_LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()

ALLOWED = frozenset(" ".join(each for each in _LINES if not each.startswith("#")).split())
"""The names in ``torch_operators.txt``; its comments say what they are."""

_OF_NUMBERS = {"gcd.int", "remainder.int", "remainder.default"}
"""Overloads that divide numbers, not tensors, and end the process where that cannot be."""


def is_allowed(called: Any) -> bool:
    """Return whether an exported model may call an operator of ATen."""
    schema = called._schema
    namespace, _, name = str(schema.name).partition("::")
    whole = f"{name}.{schema.overload_name or 'default'}"
    if whole in _OF_NUMBERS:
        return False
    named = {name, whole}
    return namespace == "aten" and not schema.is_mutable and not ALLOWED.isdisjoint(named)
