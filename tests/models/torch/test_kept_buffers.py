"""Tests of the forms in which servers keep buffers, and of buffers that they cannot keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.models.export.manifest import DenseSources
from psnb._src.models.torch.buffers import as_kept, from_kept, moved
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.models.placing import InProcessStrategy
from tests.models.torch.test_buffers import late
from tests.models.torch.wide_deep import distributed

IDS = torch.tensor([2**62 + 1, 2**62 + 2, -(2**62) - 5, 5863401923364813003, -1, 0, 3])
LARGEST = torch.iinfo(torch.int64).max

VALUES = [
    IDS,
    torch.tensor([LARGEST, -LARGEST - 1, 2**31, -(2**31), 2**32 - 1, 2**53 + 1]).reshape(2, 3),
    torch.tensor(2**61 + 7),
    IDS.view(torch.uint64),
    torch.tensor([2**32 - 1, 0], dtype=torch.uint32),
    torch.tensor([-128, 127], dtype=torch.int8),
    torch.tensor([[True, False], [False, True]]),
    torch.tensor(True),
    torch.tensor([1 + 2j, -3.5j]),
    torch.tensor([1e300 + 2j], dtype=torch.complex128).conj(),
    torch.tensor([1.5, torch.inf, -0.0], dtype=torch.bfloat16),
    torch.tensor([0.1, 1e300], dtype=torch.float64),
    torch.tensor([448.0, 0.5]).to(torch.float8_e4m3fn),
    torch.zeros(0, 3, dtype=torch.int64),
]


def named(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else str(value)


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_every_value_has_a_form_in_floats(value: Tensor) -> None:
    kept = as_kept(value)
    assert kept.dtype in (torch.float32, torch.float64)
    found = from_kept(kept, value.dtype)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    both = (each.resolve_conj().reshape(-1).view(torch.uint8) for each in (found, value))
    assert torch.equal(*both)
    # In a variable, others lie before it.
    behind = torch.cat([kept.new_zeros(1), kept.reshape(-1)])[1:].reshape(kept.shape)
    assert torch.equal(from_kept(behind, value.dtype), found)


@pytest.mark.parametrize(
    "value", [each for each in VALUES if each.element_size() > 2 or not each.is_floating_point()]
)
def test_exported_models_read_the_same_form(value: Tensor) -> None:
    if value.is_floating_point() and value.element_size() < 4:
        return  # numpy has no such dtypes
    kept, dense = as_kept(value).numpy().reshape(-1), value.resolve_conj().numpy()
    sources = DenseSources({"flat": (3 + kept.size, str(kept.dtype))}, {"value": ("flat", 3)})
    sources.check({"value": dense})
    flat = np.concatenate([np.full(3, 7, kept.dtype), kept])
    found = sources.taken({"flat": flat}, {"value": np.zeros_like(dense)})["value"]
    assert found.dtype == dense.dtype
    np.testing.assert_array_equal(found, dense)


CHANGES = [
    (torch.tensor([2**62, 5]), torch.tensor([2**62 + 1, -(2**60)])),
    (torch.tensor([LARGEST]), torch.tensor([-LARGEST - 1])),  # it wraps
    (torch.tensor([250], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)),
    (torch.tensor([True, False]), torch.tensor([False, True])),
    (torch.tensor([1j, 2.0]), torch.tensor([1j, 3.0])),
    (torch.tensor([torch.nan, 1.0]), torch.tensor([torch.nan, 2.0])),
    (torch.tensor([torch.nan]), torch.tensor([2.0])),
    (torch.tensor([torch.inf, 1.0]), torch.tensor([torch.inf, 2.0])),
]


@pytest.mark.parametrize(("before", "now"), CHANGES, ids=named)
def test_what_servers_make_of_a_change_is_what_the_step_has_computed(
    before: Tensor, now: Tensor
) -> None:
    share, term = moved(before, now)
    assert term.isfinite().all()
    kept = torch.where(share == 1, 0, as_kept(before)) * (1 - share) + term
    torch.testing.assert_close(from_kept(kept, now.dtype), now, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", VALUES, ids=named)
def test_what_is_not_moved_is_not_written(value: Tensor) -> None:
    share, term = moved(value, value.clone())
    assert not share.any()
    assert not term.any()


class Moving(nn.Module):
    """Does something to a buffer in each call."""

    kept: Tensor

    def __init__(self, value: Tensor, move: Callable[[Moving, Tensor], object]) -> None:
        super().__init__()
        self.weight, self.move = nn.Parameter(torch.ones(2)), move
        self.register_buffer("kept", value)

    def forward(self, x: Tensor) -> Tensor:
        self.move(self, x)
        return (self.weight * x).sum()


def train(model: psnb.torch.DistributedModel, *x: float) -> None:
    with model.step():
        model(torch.tensor(x)).backward()


def kept(model: psnb.torch.DistributedModel) -> Any:
    return model.state_dict()["kept"].tolist()


def count(own: Moving, x: Tensor) -> None:
    own.kept += x.sum().long()


def test_integers_are_exact_on_servers() -> None:
    model = distributed(Moving(IDS.clone(), count), sparse=None)
    assert torch.equal(model.module.kept, IDS)  # type: ignore[arg-type]
    with late(model, [torch.tensor([1.0, 2.0])] * 2):
        train(model, 5, -7)
    assert torch.equal(model.state_dict()["kept"], IDS + 4)
    model.load_state_dict({"kept": IDS - 1}, strict=False)
    assert kept(model) == (IDS - 1).tolist()


def once(own: Moving, x: Tensor) -> None:
    if not own.kept[0]:
        own.kept[0] = True
    own.kept[int(x[0])] = True


def test_flags_are_set_for_all_workers_one_by_one() -> None:
    model = distributed(Moving(torch.zeros(5, dtype=torch.bool), once), sparse=None)
    with late(model, [torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])]):
        train(model, 2, 0)
        assert kept(model) == [True, False, True, False, False]
    assert kept(model) == [True, True, True, True, False]
    assert model.module.kept.dtype == torch.bool  # type: ignore[union-attr]


def unset(own: Moving, x: Tensor) -> None:
    own.kept[int(x[0])] = x[1] > 0


def test_a_flag_is_true_after_a_round_if_a_step_of_it_has_set_it() -> None:
    own = Moving(torch.tensor([False, False, True, True]), unset)
    strategy = InProcessStrategy(mode=psnb.Sync(2))
    model = distributed(own, strategy, sparse=None)
    (variable,) = model._placed.values.state.variables
    steps = [moved(own.kept, torch.tensor(after)) for after in ROUND]
    share, term = (sum(each) / len(steps) for each in zip(*steps, strict=True))
    variable.assign(((1 - share) * as_kept(own.kept) + term).numpy())  # type: ignore[operator]
    assert kept(model) == [True, False, True, False]


ROUND = [[True, False, False, False], [False, False, True, False]]


def nothing(own: Moving, x: Tensor) -> None:
    pass


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_known_yet_may_be_no_number(value: float) -> None:
    model = distributed(Moving(torch.tensor(value), nothing), sparse=None)
    train(model, 1, 2)
    train(model, 1, 2)
    np.testing.assert_equal(kept(model), value)


def best(own: Moving, x: Tensor) -> None:
    own.kept.copy_(x.max() if own.kept.isnan() else torch.maximum(own.kept, x.max()))


def test_what_was_no_number_becomes_one() -> None:
    model = distributed(Moving(torch.tensor(torch.nan), best), sparse=None)
    train(model, 1, 2)
    train(model, 1, 0)
    assert kept(model) == 2.0


def test_a_buffer_that_becomes_no_number_is_named() -> None:
    def spoil(own: Moving, x: Tensor) -> None:
        own.kept.div_(0)

    model = distributed(Moving(torch.ones(2), spoil), sparse=None)
    with pytest.raises(InvalidArrayError, match=r"buffer 'kept' .* NaN or infinite"):
        train(model, 1, 2)
    assert model.state_dict()["weight"].tolist() == [1, 1]


def grow(own: Moving, x: Tensor) -> None:
    if x[0] > 0:
        own.kept = torch.cat([own.kept, x])


def widen(own: Moving, x: Tensor) -> None:
    if x[0] > 0:
        own.kept = own.kept.double()


def forget(own: Moving, x: Tensor) -> None:
    if x[0] > 0:
        own.kept = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (grow, r"changed its shape from \(2,\) to \(4,\)"),
        (widen, "became torch.float64 from torch.float32"),
        (forget, "was taken away"),
    ],
)
def test_a_buffer_that_becomes_another_one_is_refused_and_the_next_step_goes_on(
    change: Callable[[Moving, Tensor], None], what: str
) -> None:
    model = distributed(Moving(torch.ones(2), change), sparse=None)
    with pytest.raises(InvalidArrayError, match=f"buffer 'kept' {what}"):
        train(model, 1, 2)
    train(model, 0, 2)
    assert kept(model) == [1, 1]


def test_a_buffer_that_a_call_makes_of_none_is_refused() -> None:
    def made(own: Moving, x: Tensor) -> None:
        own.kept = x.clone() if own.kept is None else own.kept + x

    model = distributed(Moving(None, made), sparse=None)  # type: ignore[arg-type]
    train(model, 1, 2)
    with pytest.raises(ConfigurationError, match=r"'kept' is what .*register_buffer"):
        train(model, 1, 2)


class Graph(nn.Module):
    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 3)
        adjacency = torch.eye(4).roll(1, 0).to_sparse()
        self.register_buffer("adjacency", adjacency, persistent=persistent)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, self.rows.weight)[ids]  # type: ignore[no-any-return]


def test_a_sparse_buffer_is_refused_unless_each_worker_has_its_own() -> None:
    strategy = InProcessStrategy()
    with pytest.raises(ConfigurationError, match=r"'adjacency' is .*sparse.*persistent=False"):
        distributed(Graph(persistent=True), strategy)
    assert not strategy.parameters
    module = Graph(persistent=False)
    model = distributed(module, strategy).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(torch.arange(4)), module(torch.arange(4)))


class Listing(nn.Module):
    """Has what servers keep in lists, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.tensor([1.0, 2.0]))
        self.weight = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.whole = nn.Parameter(torch.arange(2), requires_grad=False)
        self.listed = [self.kept, {"frozen": self.frozen}, (self.weight, self.whole)]

    def forward(self, x: Tensor) -> Any:
        scale, more, (weight, whole) = self.listed
        assert isinstance(more, dict)
        return (scale * more["frozen"] * weight * whole * x).sum()


def test_lists_may_hold_what_servers_keep() -> None:
    module = Listing()
    model = distributed(module, sparse=None)
    for _ in range(5):
        train(model, 1, 2)
    found = model.state_dict()
    assert found["kept"].tolist() == [1, 2]
    assert found["whole"].tolist() == [0, 1]
    assert found["weight"][1] < 1


def test_a_frozen_parameter_of_integers_must_stay() -> None:
    def add(own: Moving, x: Tensor) -> None:
        with torch.no_grad():
            own.steps += 1  # type: ignore[operator]

    module = Moving(torch.ones(2), add)
    module.steps = nn.Parameter(torch.tensor(2**60 + 1), requires_grad=False)
    model = distributed(module, sparse=None)
    assert model.state_dict()["steps"] == 2**60 + 1
    with pytest.raises(ConfigurationError, match=r"'steps' .*parameter of integers.*buffer"):
        train(model, 1, 2)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_of_one_number_may_have_axes(shape: tuple[int, ...]) -> None:
    model = distributed(Moving(torch.ones(2), nothing), sparse=None)
    with model.step():
        model(torch.tensor([1.0, 2.0])).reshape(shape).backward()
    assert (model.state_dict()["weight"] < 1).all()
    with pytest.raises(InvalidArrayError, match="the loss is nan"), model.step():
        (model(torch.tensor([1.0, 2.0])) + torch.nan).reshape(shape).backward()
