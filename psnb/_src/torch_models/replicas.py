"""Replicas: the copy of a module that each thread has, in the modes that its closure began with.

Threads: each touches its own replica; the modes that new ones begin with are replaced as a whole.
"""

from __future__ import annotations

import threading

from torch import nn

from psnb._src.runtime import current_context
from psnb._src.torch_models.module_graph import keep_here
from psnb._src.torch_models.placed_module import PlacedModule
from psnb._src.torch_models.replica import Replica

Modes = dict[str, bool]
"""Whether each module within a module is in training mode, by path."""


class Replicas:
    """The replicas of a module.

    Parameters
    ----------
    placed : PlacedModule
        The module.
    modes : dict, optional
        The modes that closures begin with, and what the notebook has set; by default those of
        ``placed``.
    """

    def __init__(self, placed: PlacedModule, modes: Modes | None = None) -> None:
        self.placed = placed
        self._modes = _modes_of(placed.template) if modes is None else modes
        self._local = threading.local()

    def get(self) -> Replica:
        """Return the replica of this thread.

        Raises
        ------
        ConfigurationError
            If this process does not have the device.
        """
        if (found := self._found()) is None:
            self._local.replica = Replica(self.placed)
            _set_modes(self._local.replica.module, self._modes)
            if current_context() is None:
                keep_here(self._local.replica.module, "the notebook's model.module")
            found = self._found()
            assert found is not None
        return found

    def modes(self) -> Modes:
        """Return the modes in this thread."""
        replica = self._found()
        return self._modes if replica is None else _modes_of(replica.module)

    def train(self, mode: bool) -> None:
        """Set the mode: in the notebook for closures too, in a closure for the rest of it."""
        if current_context() is not None:
            self.get().module.train(mode)
            return
        if (replica := self._found()) is not None:
            replica.module.train(mode)
        self.placed.template.train(mode)  # which may have a `train` of its own
        self._modes = _modes_of(self.placed.template)

    def _found(self) -> Replica | None:
        found: Replica | None = getattr(self._local, "replica", None)
        context = current_context()
        if found is not None and context is not None:
            closure = context.closure, context.attempt
            if found.closure != closure:
                found.closure = closure
                _set_modes(found.module, self._modes)
        return found


def _modes_of(module: nn.Module) -> Modes:
    return {path: each.training for path, each in module.named_modules()}


def _set_modes(module: nn.Module, modes: Modes) -> None:
    for path, each in module.named_modules():
        each.training = modes.get(path, each.training)
