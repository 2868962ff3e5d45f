"""Tests of what modules leave from call to call: what is read again is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from psnb._src.models.torch.worker_state import WorkerState
from psnb.errors import ConfigurationError
from tests.models.torch.wide_deep import distributed


class Leaving(nn.Module):
    """A module that does something with an attribute."""

    def __init__(self, kept: Any, use: Callable[[Any], None]) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.kept = kept
        self._use = use

    def forward(self) -> None:
        self._use(self.inner)


def hidden(own: Any) -> None:
    own.kept = torch.ones(2) if own.kept is None else own.kept + 1


def pair(own: Any) -> None:
    own.kept = own.kept[0] + 1, own.kept[1]


def in_place(own: Any) -> None:
    own.kept.mul_(0.5)


def counted(own: Any) -> None:
    own.kept += 1


def collected(own: Any) -> None:
    own.kept.append(torch.ones(1))


def by_key(own: Any) -> None:
    own.kept["mean"] = own.kept.get("mean", 0.0) + 1


READING: list[tuple[Any, Callable[[Any], None]]] = [
    (None, hidden),
    ((torch.ones(1), torch.ones(1)), pair),
    (torch.ones(2), in_place),
    (0, counted),
    ([], collected),
    ({}, by_key),
]


def call(module: nn.Module, times: int) -> None:
    state = WorkerState()
    for _ in range(times):
        with state.calling(module):
            module()


@pytest.mark.parametrize(("kept", "use"), READING, ids=[use.__name__ for _, use in READING])
def test_what_a_call_reads_of_an_earlier_one_is_refused(
    kept: Any, use: Callable[[Any], None]
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'inner\.kept' is what a call of the module leaves"
    ):
        call(Leaving(kept, use), 2)


def overwritten(own: Any) -> None:
    own.kept = torch.ones(2)
    own.kept += 1  # of this call


def made_once(own: Any) -> None:
    if own.kept is None:
        own.kept = torch.ones(2)


def looked_at(own: Any) -> None:
    assert own.kept != own.kept  # NaN


@pytest.mark.parametrize(
    ("kept", "use"), [(None, overwritten), (None, made_once), (float("nan"), looked_at)]
)
def test_what_is_left_for_the_caller_or_made_once_is_not(
    kept: Any, use: Callable[[Any], None]
) -> None:
    module = Leaving(kept, use)
    call(module, 3)
    assert type(module.inner) is nn.Module


def test_modules_get_their_classes_back_from_a_call_that_raises() -> None:
    def fail(own: Any) -> None:
        own.kept = object()
        if own.fails:
            raise ZeroDivisionError

    module, state = Leaving(None, fail), WorkerState()
    for fails in (False, True):
        module.inner.fails = fails  # type: ignore[assignment]
        try:
            with state.calling(module):
                module()
        except ZeroDivisionError:
            assert fails
    assert type(module.inner) is nn.Module


def test_layers_of_torch_that_keep_their_weights_in_lists_are_not_refused() -> None:
    module = nn.Sequential(nn.LSTM(3, 4, batch_first=True))
    state, x = WorkerState(), torch.ones(2, 5, 3)
    for _ in range(3):
        with state.calling(module):
            found: tuple[Tensor, Any] = module(x)
    assert found[0].shape == (2, 5, 4)


class Annealed(nn.Module):
    """A module that counts its calls, and has a method that others call."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.seen, self.hidden = nn.Linear(2, 1), 0, None

    def loss(self, x: Tensor) -> Tensor:
        self.seen += 1
        loss: Tensor = self.out(x).sum() * 0.5**self.seen
        return loss

    def again(self, x: Tensor) -> Any:
        found = self.out(x) + (0 if self.hidden is None else self.hidden)
        self.hidden = found.detach()
        return found.sum()


def test_what_a_method_reads_of_an_earlier_step_is_refused_and_pushes_nothing() -> None:
    model, x = distributed(Annealed()), torch.ones(3, 2)
    with model.step():
        model.module.loss(x).backward()
    before = model.state_dict()
    with pytest.raises(ConfigurationError, match="'seen' is what a call"), model.step():
        model.module.loss(x).backward()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_step_may_use_what_it_has_left_itself() -> None:
    model, x = distributed(Annealed()), torch.ones(3, 2)
    for _ in range(3):
        with model.step():
            model.module.hidden = None
            for _ in range(2):
                model.module.again(x).backward()
