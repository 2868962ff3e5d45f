"""Follows what the notebook sets in a module and in torch's optimizers after it was distributed.

Only in the notebook. A scheduler sets rates in optimizers, and so may the user; servers apply their
own. So whenever a closure is scheduled, changed settings are set on the servers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from psnb._src.client.handles import Handle
from psnb._src.models.placing import ModelValues
from psnb._src.models.torch.optimizers import DOOR, translated
from psnb._src.models.torch.replica import frozen_in
from psnb._src.server.optimizer import Optimizer
from psnb.errors import ConfigurationError


class FollowedOptimizers:
    """Sets on servers what is set in optimizers of torch.

    Parameters
    ----------
    optimizers : sequence of torch.optim.Optimizer
        They; not kept alive.
    places : mapping of str to (int, int)
        For each parameter which optimizer and which of its groups has it.
    values : ModelValues
        Where the parameters are on the servers.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        places: Mapping[str, tuple[int, int]],
        values: ModelValues,
    ) -> None:
        self._optimizers = [weakref.ref(each) for each in optimizers]
        self._handles: dict[Handle, set[tuple[int, int]]] = {}
        self._seen = self._settings()
        for name, place in places.items():
            if name in values.tables:
                handle: Handle = values.tables[name]
            else:
                flat = values.parameters
                handle = flat.variables[flat.places[name].variable]
            self._handles.setdefault(handle, set()).add(place)

    def settle(self) -> None:
        """Set on servers what has been set since the last call.

        Raises
        ------
        ConfigurationError
            If servers cannot have it so: groups whose parameters lie in one variable have become
            different, an optimizer has taken steps of its own, or what is set needs other state.
        """
        now = self._settings()
        changed = {place for place, each in now.items() if each != self._seen.get(place)}
        if not changed:
            return
        if changed - self._seen.keys():
            raise ConfigurationError(
                f"{DOOR}: a group was added to an optimizer after the module was distributed, "
                "which servers know nothing of. Give the optimizer all parameters that learn now "
                "or later before, and freeze those that learn later: requires_grad_(False)"
            )
        made = {place: self._made(place) for place in now}
        before = {place: self._made(place, self._seen[place]) for place in now}
        news: list[tuple[Handle, str, Any]] = []
        for handle, places in self._handles.items():
            if changed.isdisjoint(places):
                continue
            wanted = {made[place] for place in places if place in made}
            if len(wanted) != 1:
                raise ConfigurationError(
                    f"{DOOR}: groups {sorted(group for _, group in places)} of one optimizer had "
                    f"the same settings, so their parameters lie in one variable, {handle.name!r}; "
                    "now they have different ones. Give those groups an optimizer each, or set "
                    "all of them alike"
                )
            (new,), old = wanted, before[next(iter(places & made.keys()))]
            if type(new) is not type(old) or new.slots != old.slots:
                raise ConfigurationError(
                    f"{DOOR}: what was set in an optimizer after the module was distributed needs "
                    f"other state: {new!r} where servers have {old!r}. Distribute the module with "
                    "it, under another name="
                )
            own = [(each.name, getattr(new, each.name)) for each in fields(new)]
            news += [(handle, name, value) for name, value in own if value != getattr(old, name)]
        for handle, name, value in news:
            setattr(handle.optimizer, name, value)
        self._seen = now

    def _settings(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Return the hyperparameters of each group of the optimizers that still exist."""
        return {
            (number, index): {
                key: value.item() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key not in _NO_SETTINGS
            }
            for number, reference in enumerate(self._optimizers)
            if (optimizer := reference()) is not None
            for index, group in enumerate(optimizer.param_groups)
        }

    def _made(self, place: tuple[int, int], settings: Mapping[str, Any] | None = None) -> Optimizer:
        number, index = place
        optimizer = self._optimizers[number]()
        assert optimizer is not None
        group = optimizer.param_groups[index]
        return translated(optimizer, {**group, **(settings or {})})


_NO_SETTINGS = ("params", "param_names", "initial_lr")


class FollowedModule:
    """A module that was distributed, in which the notebook may set what learns.

    Parameters
    ----------
    module : torch.nn.Module
        The module that was given; not kept alive.
    optimizers : FollowedOptimizers
        Those that were given.
    """

    def __init__(self, module: nn.Module, optimizers: FollowedOptimizers) -> None:
        self._module, self.optimizers = weakref.ref(module), optimizers
        self._frozen = frozen_in(module)

    def frozen(self, before: frozenset[str]) -> frozenset[str] | None:
        """Return what does not learn, given what did not; None if nothing was set."""
        module = self._module()
        if module is None or (now := frozen_in(module)) == self._frozen:
            return None
        thawed, self._frozen = self._frozen - now, now
        return (before - thawed) | now
