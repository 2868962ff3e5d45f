"""The operations of a model's call in PyTorch, with the pull and push around it.

The operations are noted as PyTorch executes them, so that any module can be described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import Handle
from psnb._src.client.variable import Variable
from psnb._src.models.step_description import StepDescription, StepOperation, array_text, described

_NOTHING = ("detach", "lift_fresh")
"""Operations that compute nothing: psnb makes tensors of arrays."""


class OperationRecorder(TorchDispatchMode):
    """Notes the operations that are carried out within it, and the modules that they are in.

    Parameters
    ----------
    depth : int
        At which it begins; operations at -1 are not noted.

    Attributes
    ----------
    operations : list of StepOperation
        So far.
    """

    def __init__(self, depth: int = -1) -> None:
        super().__init__()
        self.operations: list[StepOperation] = []
        self._depth = depth

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry an operation out, and note it."""
        found = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        if self._depth >= 0 and name not in _NOTHING:  # what comes before is psnb's pull
            self._note(name, (args, kwargs), found)
        return found

    @contextmanager
    def following(self, modules: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
        """Note what modules do from now on, and where they are; at no path is the whole one."""
        with ExitStack() as hooks:
            for path, each in modules:
                self._follow(path, each, hooks)
            yield

    def _follow(self, path: str, module: nn.Module, hooks: ExitStack) -> None:
        def begin(module: nn.Module, args: Any) -> None:
            if path:
                self._note(type(module).__name__, args, None, path)
            self._depth += 1

        def end(module: nn.Module, args: Any, result: Any) -> None:
            self._depth -= 1

        hooks.callback(module.register_forward_pre_hook(begin).remove)
        hooks.callback(module.register_forward_hook(end, always_call=True).remove)

    def _note(self, name: str, given: Any, found: Any, note: str = "") -> None:
        operation = StepOperation(name, _texts(given), _texts(found), note, self._depth)
        self.operations.append(operation)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(
        array_text(str(each.dtype).removeprefix("torch."), each.shape)
        for each in tree_leaves(values)
        if isinstance(each, Tensor)
    )


def described_call(
    recorder: OperationRecorder, tables: Iterable[Embedding], variables: Iterable[Variable]
) -> StepDescription:
    """Return what was recorded, with the pull before it, and backward and the push after it."""
    handles: list[Handle] = [*tables, *variables]
    known: list[tuple[Handle, int | None]] = [(each, None) for each in handles]
    # Between a call and the push; the loss decides what it does.
    backward = StepOperation("backward", note="autograd goes through these operations in reverse")
    return described(known, [*recorder.operations, backward], known)
