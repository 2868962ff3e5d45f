"""StepDescription: the operations of a training step in their order, psnb's own too. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle, shards_of

_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf", "complex": "c"}

_TEXT = 60


@dataclass(frozen=True, slots=True)
class StepOperation:
    """One operation of a step.

    Attributes
    ----------
    name : str
        ``"pull"`` and ``"push"`` are psnb's; all others are as the framework calls them.
    inputs, outputs : tuple of str
        The arrays that go in and come out: dtype and shape, such as ``"f32[512,16]"``.
    note : str
        Of a pull or push, the parameter and the servers that have it; of an operation that the
        framework derived to compute gradients, ``"gradient"``; of a module, where it is.
    depth : int
        0; more for an operation within others.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    note: str = ""
    depth: int = 0


class StepDescription(tuple[StepOperation, ...]):
    """The operations of a step; printed, a line each. All that a tuple can."""

    __slots__ = ()

    def __repr__(self) -> str:
        names = ["  " * each.depth + each.name for each in self]
        width = max(map(len, names), default=0)
        return "\n".join(
            "  ".join((name.ljust(width), _arrays(each), each.note)).rstrip()
            for name, each in zip(names, self, strict=True)
        )


def described(
    pulled: Iterable[tuple[Handle, int | None]],
    operations: Iterable[StepOperation],
    pushed: Iterable[tuple[Handle, int | None]],
) -> StepDescription:
    """Return operations with the pull that goes before them, and the push after them.

    Parameters
    ----------
    pulled, pushed : iterable of (Handle, int or None)
        The parameters; of an embedding how many rows, if that is known.
    operations : iterable of StepOperation
        What is computed.
    """
    before, after = ((_moving(*each) for each in several) for several in (pulled, pushed))
    return StepDescription(
        [
            *(StepOperation("pull", (), *each) for each in before),
            *operations,
            *(StepOperation("push", array, (), note) for array, note in after),
        ]
    )


def array_text(dtype: str, shape: Iterable[object]) -> str:
    """Return an array's dtype and shape in short: ``f32[512,16]``."""
    kind = dtype.rstrip("0123456789")
    return f"{_SHORT.get(kind, kind)}{dtype[len(kind) :]}[{','.join(map(str, shape))}]"


def _moving(handle: Handle, count: int | None) -> tuple[tuple[str], str]:
    """Return what is pulled or pushed of a parameter, and where that is."""
    kind = "embedding" if isinstance(handle, Embedding) else "variable"
    shape: tuple[object, ...] = (
        ("rows" if count is None else count, handle.dim)
        if isinstance(handle, Embedding)
        else handle.shape
    )
    note = f"{kind} {handle.name!r} on {', '.join(shards_of(handle).servers())}"
    return (array_text(np.dtype(handle.dtype).name, shape),), note


def _arrays(operation: StepOperation) -> str:
    sides = [", ".join(each) for each in (operation.inputs, operation.outputs) if each]
    return " -> ".join(e if len(e) <= _TEXT else f"{e[: _TEXT - 1]}…" for e in sides)
