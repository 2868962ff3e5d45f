"""Tests of distributed modules; servers in this process."""

from __future__ import annotations

import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import psnb.torch
from psnb._src.server import SGD, Adagrad
from psnb.errors import (
    ConfigurationError,
    GradientError,
    IdOutOfRangeError,
    SerializationError,
)
from tests.models.placing import InProcessStrategy

RATE = 0.5
SPARSE, DENSE = SGD(RATE), SGD(RATE)


class WideDeep(nn.Module):
    """Two tables, one of which is used twice, bags, and a network."""

    def __init__(self, mode: str = "mean", **options: Any) -> None:
        super().__init__()
        self.ads = nn.Embedding(10, 4, padding_idx=0)
        self.users = nn.Embedding(8, 4)
        self.words = nn.EmbeddingBag(12, 4, mode=mode, **options)
        self.network = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, ids: Tensor, words: Tensor, offsets: Tensor, weights: Any = None) -> Tensor:
        bags = self.words(words, offsets, weights)
        rows = [self.ads(ids[:, 0]), self.users(ids[:, 1]), self.users(ids[:, 2]), bags]
        found: Tensor = self.network(torch.cat(rows, 1)).squeeze(1)
        return found


IDS = torch.tensor([[1, 7, 7], [0, 2, 7], [1, 3, 2], [9, 7, 1]])
WORDS, OFFSETS = torch.tensor([3, 1, 3, 5, 11]), torch.tensor([0, 3, 3, 4])
Y = torch.tensor([1.0, 0.0, 1.0, 0.5])


def loss_of(model: Any, weights: Tensor | None = None) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(IDS, WORDS, OFFSETS, weights), Y)


def distributed(
    module: nn.Module, strategy: InProcessStrategy | None = None, **options: Any
) -> psnb.torch.DistributedModel:
    options = {"sparse": SPARSE, "dense": DENSE, **options}
    return psnb.torch.distribute(module, strategy or InProcessStrategy(), **options)


def step(model: psnb.torch.DistributedModel, **options: Any) -> float:
    with model.step():
        loss = loss_of(model, **options)
        loss.backward()
    return loss.item()


def step_alone(module: nn.Module, **options: Any) -> float:
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    optimizer.zero_grad()
    loss = loss_of(module, **options)
    loss.backward()
    optimizer.step()
    return loss.item()


def assert_same(model: psnb.torch.DistributedModel, module: nn.Module) -> None:
    expected = module.state_dict()
    found = model.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_step_is_one_of_torch(mode: str, padding: int | None) -> None:
    module = WideDeep(mode, padding_idx=padding)
    model = distributed(module)
    assert_same(model, module)
    for _ in range(3):
        assert step(model) == pytest.approx(step_alone(module), rel=1e-5)
    assert_same(model, module)


def test_weights_in_bags_are_those_of_torch() -> None:
    module, weights = WideDeep("sum"), torch.linspace(0.1, 1.0, 5)
    model = distributed(module)
    assert step(model, weights=weights) == pytest.approx(step_alone(module, weights=weights))
    assert_same(model, module)


def test_from_the_second_step_on_the_servers_are_asked_once_and_told_once() -> None:
    strategy = InProcessStrategy()
    model = distributed(WideDeep(), strategy)
    counts = []
    for _ in range(3):
        strategy.calls()
        step(model)
        counts.append(strategy.calls())
    assert counts[1:] == [3, 3]  # one to read; prepared on both servers, then applied
    assert counts[0] > 3


def test_what_was_learned_from_a_batch_is_of_use_for_batches_of_other_lengths() -> None:
    strategy = InProcessStrategy()
    model = distributed(WideDeep(), strategy)
    step(model)
    strategy.calls()
    with torch.no_grad():
        model(IDS[:2], WORDS[:3], OFFSETS[:2])
    assert strategy.calls() == 1


def test_ids_that_a_module_computes_can_be_declared() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids + 1).sum()

    strategy = InProcessStrategy()
    model = distributed(Shifted(), strategy)
    for options, expected in (({}, 3), ({"ids": {"table": IDS.clamp(max=8) + 1}}, 3)):
        strategy.calls()
        with model.step(**options):
            model(IDS.clamp(max=8)).backward()
        assert strategy.calls() == expected


def test_a_table_that_is_used_twice_gets_one_update() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Embedding(5, 2), nn.Embedding(5, 2)
            self.two.weight = self.one.weight

        def forward(self, ids: Tensor) -> Tensor:
            return (self.one(ids) * self.two(ids + 1)).sum()

    module = Twice()
    optimizer = torch.optim.Adagrad(
        module.parameters(), RATE, initial_accumulator_value=0.1, eps=1e-7
    )
    model = distributed(module, sparse=Adagrad(RATE))
    assert len(model.tables) == 1
    ids = torch.tensor([0, 2, 0])
    with model.step():
        model(ids).backward()
    module(ids).backward()
    optimizer.step()
    assert_same(model, module)


def test_a_weight_that_another_layer_uses_is_a_parameter_like_others() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.table(ids)).square().sum()

    module = Tied()
    model = distributed(module, sparse=None)
    assert not model.tables
    ids = torch.tensor([0, 2])
    with model.step():
        model(ids).backward()
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    module(ids).backward()
    optimizer.step()
    assert_same(model, module)


def test_gradients_of_several_calls_in_a_step_add_up() -> None:
    module = WideDeep()
    model = distributed(module)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    with model.step():
        for part in (slice(0, 2), slice(2, 4)):
            for each in (model, module):
                each(IDS[part], WORDS[part], torch.arange(2)).sum().backward()
    optimizer.step()
    assert_same(model, module)


def test_clipping_by_norm_counts_rows_as_well() -> None:
    module = WideDeep()
    model = distributed(module)
    with model.step():
        loss_of(model).backward()
        found = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    loss_of(module).backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    torch.testing.assert_close(found, expected)
    torch.optim.SGD(module.parameters(), RATE).step()
    assert_same(model, module)


def test_a_function_of_the_name_chooses_the_optimizer() -> None:
    model = distributed(
        WideDeep(),
        sparse=lambda name: SGD(1.0) if name == "ads.weight" else Adagrad(),
        dense=lambda name: SGD(2.0) if name.endswith("bias") else SGD(3.0),
    )
    rates = {name: table.optimizer.learning_rate for name, table in model.tables.items()}  # type: ignore[union-attr]
    assert rates == {"ads.weight": 1.0, "users.weight": 0.01, "words.weight": 0.01}
    assert sorted(variable.shape for variable in model.variables) == [(6,), (85,)]


def test_what_takes_no_gradient_stays_where_it_is() -> None:
    module = WideDeep()
    module.users.weight.requires_grad_(False)
    module.network[0].bias.requires_grad_(False)
    strategy = InProcessStrategy()
    model = distributed(module, strategy)
    assert set(model.tables) == {"ads.weight", "words.weight"}
    frozen = module.users.weight.clone()
    step(model)
    step_alone(module)
    assert_same(model, module)
    torch.testing.assert_close(model.state_dict()["users.weight"], frozen)


class Normed(nn.Module):
    """A module with buffers of floats, of integers and of bools."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 1)
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x)).sum()


def test_running_statistics_are_those_of_torch() -> None:
    module = Normed()
    model = distributed(module, sparse=None)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    for seed in range(3):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
        with model.step():
            model(x).backward()
        optimizer.zero_grad()
        module(x).backward()
        optimizer.step()
    assert_same(model, module)
    assert model.state_dict()["norm.num_batches_tracked"] == 3
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), module.eval()(x), rtol=1e-5, atol=1e-6)


def test_a_state_goes_both_ways_and_gives_equal_predictions() -> None:
    module, other = WideDeep().eval(), WideDeep().eval()
    model = distributed(module).eval()
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(loss_of(model), loss_of(other), rtol=1e-6, atol=1e-6)
        module.load_state_dict(model.state_dict())
        torch.testing.assert_close(loss_of(module), loss_of(other), rtol=1e-6, atol=1e-6)


def test_buffers_of_another_shape_change_nothing() -> None:
    module = Normed()
    model = distributed(module, sparse=None)
    state = {key: value + 1 for key, value in module.state_dict().items() if key != "mask"}
    with pytest.raises(GradientError, match=r"'norm.running_mean' was made with shape \(3,\)"):
        model.load_state_dict({**state, "mask": module.mask, "norm.running_mean": torch.zeros(4)})
    assert_same(model, module)


def test_a_state_of_another_model_changes_nothing() -> None:
    module = WideDeep()
    model = distributed(module)
    state = module.state_dict()
    with pytest.raises(GradientError, match=r"1 keys are in one of both only.*'more'"):
        model.load_state_dict({**state, "more": torch.zeros(1)})
    with pytest.raises(GradientError, match=r"'users.weight' was made with shape \(8, 4\)"):
        model.load_state_dict({**state, "users.weight": torch.zeros(9, 4)})
    with pytest.raises(GradientError, match=r"'network.0.bias' was made with shape \(5,\)"):
        model.load_state_dict({**state, "network.0.bias": torch.zeros(6)})
    assert_same(model, module)


def test_an_evaluation_leaves_no_trace_in_tables_of_any_id() -> None:
    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = psnb.torch.Embedding(dim=3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids).sum()

    module = Hashed()
    model = distributed(module, dense=None)
    ids = torch.tensor([2**62, -5, 2**62])
    model.eval()(ids)
    assert model.tables["table"].statistics().rows == 0
    with model.train().step():
        model(ids).backward()
    assert model.tables["table"].statistics().rows == 2
    state = model.state_dict()
    assert state["table.ids"].tolist() == [-5, 2**62]
    module.load_state_dict(state)
    torch.testing.assert_close(module(ids), model.eval()(ids))
    assert module(torch.tensor([77])) == 0
    again = distributed(module, dense=None)
    torch.testing.assert_close(again.eval()(ids), module(ids))
    again.load_state_dict({**state, "table.rows": torch.ones(2, 3)})
    assert again(ids) == 9


def test_autocast_computes_in_half_precision_and_keeps_float32() -> None:
    model = distributed(WideDeep())
    with model.step(), torch.autocast("cpu", torch.bfloat16):
        out = model(IDS, WORDS, OFFSETS)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())


@pytest.mark.slow
def test_a_compiled_part_works() -> None:
    module = WideDeep()
    model_alone = WideDeep()
    model_alone.load_state_dict(module.state_dict())
    module.network.compile(backend="eager")
    model = distributed(module)
    for _ in range(2):
        assert step(model) == pytest.approx(step_alone(model_alone), rel=1e-5)
    assert_same(model, model_alone)


def test_a_model_travels_with_its_mode_and_without_values() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(50_000, 4), nn.Linear(300, 300)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids).sum() + self.out.weight.sum()

    model = distributed(Large())
    assert len(cloudpickle.dumps(model)) < 50_000
    assert not cloudpickle.loads(cloudpickle.dumps(model.eval())).training


def test_threads_train_at_the_same_time() -> None:
    module = WideDeep()
    model = distributed(module)
    both, losses = threading.Barrier(2, timeout=30), []

    def train() -> None:
        with model.step():
            both.wait()
            loss = loss_of(model)
            both.wait()
            loss.backward()
            both.wait()
        losses.append(loss.item())

    threads = [threading.Thread(target=train) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert losses[0] == losses[1]
    loss_of(module).backward()
    torch.optim.SGD(module.parameters(), 2 * RATE).step()
    assert_same(model, module)


def test_gradients_of_an_evaluation_are_no_part_of_the_next_step() -> None:
    module = WideDeep()
    model = distributed(module)
    loss_of(model.eval()).backward()
    step(model.train())
    step_alone(module)
    assert_same(model, module)


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
            GradientError, match=r"'network.0.weight'.*not finite; the batch: \[0\] \[4, 3\] int64"
        ),
        model.step(),
    ):
        (loss_of(model) * torch.nan).backward()
    assert_same(model, module)


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
    with pytest.raises(ConfigurationError, match=r"'hidden' is a tensor that a call of the module"):
        train()
    model = distributed(Remembering(as_buffer=True), sparse=None)
    train()
    train()


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (IDS + 5, IdOutOfRangeError, "has 10 rows, so ids are 0 to 9"),
        (IDS.float(), GradientError, "ids are a tensor of torch.float32: ids are integers"),
    ],
)
def test_ids_that_are_none_are_refused(ids: Tensor, error: type[Exception], message: str) -> None:
    model = distributed(WideDeep())
    with pytest.raises(error, match=message), model.step():
        model(ids, WORDS, OFFSETS)


def test_modules_that_servers_cannot_keep_are_refused_before_anything_is_placed() -> None:
    strategy = InProcessStrategy()

    class Locked(WideDeep):
        def __init__(self) -> None:
            super().__init__()
            self.network.lock = threading.Lock()  # type: ignore[assignment]

    half = WideDeep()
    half.network.half()
    large = WideDeep()
    large.users.max_norm = 1.0
    for module, error, message in (
        (large, ConfigurationError, "'users' has max_norm=1.0"),
        (half, ConfigurationError, "float16; servers keep float32.*autocast"),
        (Locked(), SerializationError, "'network.lock'.*cannot be pickled"),
        (WideDeep, ConfigurationError, "expected a torch.nn.Module, found type"),
    ):
        with pytest.raises(error, match=message):
            distributed(module, strategy)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"'ads\.weight': expected an optimizer of psnb"):
        distributed(WideDeep(), strategy, sparse=torch.optim.SGD)
    with pytest.raises(ConfigurationError, match=r"'network\.0\.weight': expected an optimizer"):
        distributed(WideDeep(), strategy, dense=None)
    assert not strategy.parameters


def test_a_second_model_needs_another_name() -> None:
    strategy = InProcessStrategy()
    distributed(WideDeep(), strategy)
    with pytest.raises(ConfigurationError, match="give this model another name="):
        distributed(WideDeep(), strategy)
    distributed(WideDeep(), strategy, name="other")
    assert "other.ads.weight" in strategy.parameters


def test_an_embedding_alone_is_a_model() -> None:
    module = nn.Embedding(6, 2)
    model = distributed(module, dense=None)
    with model.step():
        model(torch.tensor([1, 1])).sum().backward()
    np.testing.assert_allclose(
        model.state_dict()["weight"][1].numpy(), module.weight.detach()[1].numpy() - 2 * RATE
    )
