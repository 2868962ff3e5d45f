"""Tests of errors in steps: each says what is wrong, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import psnb.torch
from psnb._src.protocol.errors import pack_error, unpack_error
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError, IdOutOfRangeError, InvalidArrayError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import (
    IDS,
    OFFSETS,
    WORDS,
    WideDeep,
    assert_same,
    distributed,
    loss_of,
    step,
)


def test_a_step_that_raises_pushes_nothing() -> None:
    module = WideDeep()
    model = distributed(module)

    def fail() -> None:
        with model.step():
            loss_of(model).backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_same(model, module)
    step(model)


def test_gradients_that_would_go_nowhere_are_refused() -> None:
    model = distributed(WideDeep())
    with pytest.raises(ConfigurationError, match=r"outside of `with model.step\(\):`"):
        loss_of(model)
    with (
        pytest.raises(ConfigurationError, match=r"loss.backward\(\) belongs into the block"),
        model.step(),
    ):
        loss_of(model)
    with (
        pytest.raises(ConfigurationError, match="a step within a step"),
        model.step(),
        model.step(),
    ):
        pass
    with pytest.raises(ConfigurationError, match="a part of a distributed model"):
        model.module.get_submodule("ads")(IDS)


def test_parameters_that_are_not_finite_are_named() -> None:
    module = WideDeep()
    model = distributed(module)
    with (
        pytest.raises(
            InvalidArrayError,
            match=r"'network.0.weight'.*not finite; the batch: \[0\] \[4, 3\] int64",
        ),
        model.step(),
    ):
        (loss_of(model) * torch.nan).backward()
    assert_same(model, module)


@pytest.mark.parametrize("through", [torch.Tensor.backward, torch.autograd.backward])
def test_a_loss_that_is_not_finite_is_refused_also_where_all_gradients_are(through: Any) -> None:
    module = WideDeep()
    model = distributed(module)
    with (
        pytest.raises(InvalidArrayError, match=r"\[0\] \[4, 3\] int64.*the loss is -inf"),
        model.step(),
    ):
        through(loss_of(model) + torch.zeros(()).log().bfloat16())
    assert_same(model, module)
    with model.step():  # what nothing was learned from
        loss_of(model) + torch.zeros(()).log()
        loss_of(model).backward()


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_several_losses_of_which_one_is_not_finite_are_refused_unless_it_is_masked(
    bad: float,
) -> None:
    module = WideDeep()
    model = distributed(module)
    weights = torch.ones(2)
    for through in (
        lambda both: both.backward(weights),
        lambda both: torch.autograd.backward([both.sum(), both], [None, weights]),
        lambda both: torch.autograd.backward(both, grad_tensors=weights),
    ):
        with pytest.raises(InvalidArrayError, match="the loss is"), model.step():
            through(torch.stack([loss_of(model), torch.tensor(bad)]))
    assert_same(model, module)
    with model.step():
        torch.stack([loss_of(model), torch.tensor(bad)]).backward(torch.tensor([1.0, 0.0]))


class Scaling(nn.Module):
    """A layer whose gradient can be made bad, one that has none, and a buffer."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad, self.unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
        self.register_buffer("total", torch.zeros(1))

    def forward(self, factor: float, added: float = 0.0) -> Tensor:
        self.total += added
        return (self.good + factor * self.bad).sum()


def test_of_parameters_only_those_that_are_not_finite_are_named() -> None:
    model = distributed(Scaling(), sparse=None)
    with (
        pytest.raises(InvalidArrayError, match=r"the gradients of 'bad' \(1 of 3 parameters\)"),
        model.step(),
    ):
        model(torch.inf).backward()


def test_a_buffer_that_is_not_finite_is_not_reported_as_a_parameter() -> None:
    model = distributed(Scaling(), sparse=None)
    with pytest.raises(InvalidArrayError, match=r"^(?!the gradients of)"), model.step():
        model(1.0, torch.nan).backward()


def test_a_step_in_which_nothing_is_to_be_learned_pushes_nothing() -> None:
    module = WideDeep()
    model = distributed(module)
    with model.step(), torch.no_grad():
        loss_of(model)
    assert_same(model, module)


def test_ids_for_no_table_raise_an_error_with_the_tables() -> None:
    model = distributed(WideDeep())
    with (
        pytest.raises(ConfigurationError, match=r"no table for 'adz'; there are \['ads.weight', "),
        model.step(ids={"adz": IDS}),
    ):
        pass


class Remembering(nn.Module):
    """A module that keeps what it computed."""

    def __init__(self, *, as_buffer: bool) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)
        self.hidden: Any = None
        if as_buffer:
            del self.hidden
            self.register_buffer("hidden", torch.zeros(1, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cell(x + (0 if self.hidden is None else self.hidden))
        self.hidden = found.detach()
        return found.sum()


def test_a_module_that_keeps_tensors_from_call_to_call_is_refused() -> None:
    model = distributed(Remembering(as_buffer=False), sparse=None)
    x = torch.ones(1, 2)

    def train() -> None:
        with model.step():
            model(x).backward()

    train()
    with pytest.raises(ConfigurationError, match="'hidden' is what a call of the module leaves"):
        train()
    model = distributed(Remembering(as_buffer=True), sparse=None)
    train()
    train()


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (
            IDS + 5,
            IdOutOfRangeError,
            r"ads.weight' has 10 rows, so ids are 0 to 9; found id 14 at \[3\]; these ids are "
            r"input \[0\]\[:, 0\] of the model",
        ),
        (
            IDS.float(),
            InvalidArrayError,
            "the ids for 'ads.weight': expected integers, found dtype float32",
        ),
        (IDS.bool(), InvalidArrayError, "expected integers, found dtype bool"),
        (
            IDS.to(torch.complex64),
            InvalidArrayError,
            "expected integers, found dtype complex64",
        ),
        (
            IDS.numpy().astype(str).astype(object),
            InvalidArrayError,
            "found text: psnb.hash_ids makes ids of it",
        ),
        (IDS.numpy(), InvalidArrayError, "are no tensor: psnb.torch.as_torch makes some"),
    ],
)
def test_ids_that_are_none_are_refused(ids: Any, error: type[Exception], message: str) -> None:
    model = distributed(WideDeep())
    with pytest.raises(error, match=message), model.step():
        model(ids, WORDS, OFFSETS)


def test_a_parameter_that_changes_while_the_module_runs_is_named() -> None:
    class Growing(WideDeep):
        grows: tuple[Any, ...] = ()

        def forward(
            self, ids: Tensor, words: Tensor, offsets: Tensor, weights: Any = None
        ) -> Tensor:
            found = super().forward(ids, words, offsets, weights)
            for change in self.grows:
                if isinstance(change, nn.Module):
                    self.network[2] = change
                else:
                    change(self.network[2])
            return found

    def _sharing(layer: nn.Module) -> None:
        layer.weight.data = layer.weight.data.clone()

    module = Growing()
    for layer, message in (
        (nn.Linear(5, 2), r"'network.2.weight' changed its shape from \(1, 5\) to \(2, 5\)"),
        (nn.Linear(5, 1), "'network.2.weight' was replaced by another tensor"),
        (nn.ReLU(), "'network.2.weight' was taken away"),
        (_sharing, "'network.2.weight' was replaced by another tensor"),
    ):
        model = distributed(module)
        model.module.grows = (layer,)
        with pytest.raises(InvalidArrayError, match=message + ".*place it again"), model.step():
            loss_of(model).backward()
        assert_same(model, module)
        model = distributed(module)
        model.eval().module.grows = (layer,)
        with pytest.raises(InvalidArrayError, match=message):
            loss_of(model)


def test_a_batch_that_lacks_a_feature_says_what_it_has() -> None:
    batch = psnb.torch.as_torch({"ids": np.arange(3), "labels": np.zeros(3)})
    with pytest.raises(KeyError, match="label") as error:
        batch["label"]
    assert error.value.__notes__ == [
        "there is no feature of the batch 'label': did you mean 'labels'?"
    ]
    with pytest.raises(KeyError) as error:
        batch["x"]
    assert error.value.__notes__ == ["there is no feature of the batch 'x'; there are ids, labels"]
    assert batch.get("label") is None
    assert unpack_error(pack_error(error.value, "")).__notes__[0] == error.value.__notes__[0]


class Clamping(nn.Module):
    """A layer that keeps its weights in bounds by itself, as critics of WGANs do."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.free, self.bounded = nn.Linear(2, 1), nn.Linear(2, 1)
        self._shown = shown

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self._shown(self.bounded.weight).clamp_(-0.001, 0.001)
        return self.free(x) + self.bounded(x)


@pytest.mark.parametrize("shown", [lambda weight: weight, lambda weight: weight.data])
def test_a_parameter_that_is_written_to_is_refused(shown: Any) -> None:
    model = distributed(
        Clamping(shown),
    )
    before = model.state_dict()
    with (
        pytest.raises(InvalidArrayError, match=r"'bounded.weight' \(1 in all\) were written to"),
        model.step(),
    ):
        model(torch.ones(1, 2)).sum().backward()
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


class Scored(nn.Module):
    """A module with a method that others call."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)

    def score(self, x: Tensor) -> Tensor:
        return self.out(x).sum()  # type: ignore[no-any-return]


def test_a_method_that_only_the_module_has_says_where_it_is() -> None:
    model = distributed(Scored())
    with pytest.raises(AttributeError, match=r"has no 'score'; .*call model\.module\.score within"):
        model.score  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'other'$"):
        model.other  # type: ignore[attr-defined]  # noqa: B018


def test_outside_of_a_step_methods_have_the_values_of_the_servers() -> None:
    alone, x = Scored(), torch.ones(3, 2)
    model = distributed(alone)
    torch.testing.assert_close(model.module.score(x), alone.score(x))
    with model.step():
        model.module.score(x).backward()
    alone.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.module.score(x), alone.score(x))


def test_gradients_of_values_that_were_not_fetched_in_the_step_are_refused() -> None:
    model = distributed(Scored())
    module = model.module
    with (
        pytest.raises(ConfigurationError, match=r"take model\.module within the block"),
        model.step(),
    ):
        module.score(torch.ones(3, 2)).backward()


@pytest.mark.parametrize(
    ("ids", "message"),
    [([3, 1], "are no tensor: .* torch.as_tensor of lists"), (["Rome"], "psnb.hash_ids")],
)
def test_lists_are_no_ids(ids: Any, message: str) -> None:
    module = nn.Sequential(psnb.torch.Embedding(2))
    model = psnb.torch.distribute(module, InProcessStrategy(), sparse=SGD(1.0))
    with pytest.raises(InvalidArrayError, match=message), model.step():
        model(ids)
