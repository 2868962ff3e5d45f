"""Checks what a state would write on the servers, before any of it is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from psnb.errors import InvalidArrayError

_SHOWN = 4


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` returns, as that of torch.

    Attributes
    ----------
    missing_keys : list of str
        Keys of the model that the state lacks.
    unexpected_keys : list of str
        Keys of the state that the model lacks.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def check_keys(
    state: Mapping[str, Any], expected: Mapping[str, Any], *, strict: bool
) -> IncompatibleKeys:
    """Return the keys that only one of both has; raise InvalidArrayError if none may be missing."""
    found = IncompatibleKeys(
        [key for key in expected if key not in state], [key for key in state if key not in expected]
    )
    if strict and any(found):
        texts = [
            f"{len(keys)} keys are {what}, such as {keys[:_SHOWN]}"
            for what, keys in (("missing", found[0]), ("unexpected", found[1]))
            if keys
        ]
        raise InvalidArrayError(
            f"the state is of another model: {'; '.join(texts)}. strict=False loads what is in both"
        )
    return found


def checked_array(key: str, value: Any, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a value of a state as an array of this shape, in which None is any length."""
    plain = _checked(key, value, shape, takes_complex=False)
    # What numpy has no dtype for (bfloat16) fits into float32.
    wide = plain.is_floating_point() and plain.element_size() < 4
    return (plain.float() if wide else plain).numpy()


def checked_buffer(key: str, value: Any, like: Tensor) -> Tensor:
    """Return a value of a state with the shape and the dtype of a buffer."""
    shape = tuple(like.shape)
    return _checked(key, value, shape, takes_complex=like.is_complex()).to(like.dtype)


def _checked(key: str, value: Any, shape: tuple[int | None, ...], *, takes_complex: bool) -> Tensor:
    if not isinstance(value, Tensor):
        raise InvalidArrayError(
            f"{key!r} of the state is of type {type(value).__name__}: values of a state are tensors"
        )
    if value.is_complex() and not takes_complex:
        raise InvalidArrayError(
            f"{key!r} of the state is of {value.dtype}, and the model's is of no complex numbers"
        )
    sizes = tuple(value.shape)
    if len(sizes) != len(shape) or any(
        wanted not in (None, size) for size, wanted in zip(sizes, shape, strict=True)
    ):
        expected = str(shape).replace("None", "n")
        raise InvalidArrayError(
            f"{key!r} was made with shape {expected}, and the state has {sizes}: a model whose "
            "layers changed is another model; place it again, under another name="
        )
    return value.detach().cpu()


def checked_rows(
    ids: tuple[str, Any] | None, rows: tuple[str, Any] | None, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and rows of a table of any id; each is given with its key."""
    if ids is None or rows is None:
        key, _ = ids or rows or ("", None)
        raise InvalidArrayError(
            f"the state has {key!r} alone: ids and rows of a table belong together"
        )
    key, _ = ids
    numbers = checked_array(*ids, (None,))
    if numbers.dtype.kind not in "iu":
        raise InvalidArrayError(f"{key!r} of the state is of {numbers.dtype}: ids are integers")
    values = checked_array(*rows, (len(numbers), dim))
    found, counts = np.unique(numbers, return_counts=True)
    if twice := found[counts > 1][:_SHOWN].tolist():
        raise InvalidArrayError(f"{key!r} of the state has ids more than once, such as {twice}")
    return numbers.astype(np.int64), values
