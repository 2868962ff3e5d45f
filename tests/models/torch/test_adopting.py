"""Modules that take up the parameters that a strategy has of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.server.optimizers import SGD, Adagrad, Adam
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import Normed, WideDeep, distributed, step


def learned(**options: Any) -> tuple[InProcessStrategy, dict[str, Tensor]]:
    """Return a strategy as another process finds it, with a model that has learned; its state."""
    strategy = InProcessStrategy()
    model = distributed(WideDeep(), strategy, **options)
    step(model)
    return strategy.again(), model.state_dict()


def test_a_module_goes_on_with_the_values_and_the_optimizer_state_that_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"sparse": Adagrad(0.1), "dense": Adam(0.1)}
    torch.manual_seed(1)
    plain = WideDeep()
    undisturbed = distributed(plain, **options)
    before = distributed(plain, there := InProcessStrategy(), **options)
    step(undisturbed)
    step(before)
    with caplog.at_level(logging.WARNING, "psnb"):
        model = psnb.torch.distribute(WideDeep(), there.again())
    assert "model 'WideDeep' goes on with what the strategy has of it: 1 variable, 3 tables" in (
        caplog.text
    )
    for _ in range(2):
        assert step(model) == step(undisturbed)
    for key, value in undisturbed.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_state_that_steps_move_is_taken_up_too() -> None:
    strategy = InProcessStrategy()
    before = distributed(Normed(), strategy)
    with before.step():
        before(torch.randn(8, 3)).backward()
    model = psnb.torch.distribute(Normed(), strategy.again())
    assert model.state_dict()["norm.num_batches_tracked"] == 1
    for key, value in before.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


class Swapped(nn.Module):
    """Two layers of one size, whose order can be another one."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(2, 2))


def test_parameters_are_found_by_name_though_the_module_has_another_order() -> None:
    strategy = InProcessStrategy()
    state = distributed(Swapped("a", "b"), strategy).state_dict()
    model = psnb.torch.distribute(Swapped("b", "a"), strategy.again())
    found = model.state_dict()
    assert list(found) == ["b.weight", "b.bias", "a.weight", "a.bias"]
    assert all(torch.equal(found[key], value) for key, value in state.items())


class Any64(nn.Module):
    """A table of any id."""

    def __init__(self, dim: int = 2, initializer: Any = 0.5) -> None:
        super().__init__()
        self.words = psnb.torch.Embedding(dim, initializer)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids).sum()


def test_a_table_of_any_id_keeps_its_ids() -> None:
    strategy = InProcessStrategy()
    before = distributed(Any64(), strategy)
    with before.step():
        before(torch.tensor([7, -3])).backward()
    model = psnb.torch.distribute(Any64(), strategy.again())
    assert model.state_dict()["words.ids"].tolist() == [-3, 7]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(5, 2), nn.Embedding(5, 2)
        self.two.weight = self.one.weight
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight


def test_weights_that_are_shared_are_taken_up_once() -> None:
    strategy = InProcessStrategy()
    before = distributed(Tied(), strategy)
    model = psnb.torch.distribute(Tied(), strategy.again())
    assert len(model.tables) == 1
    found = model.state_dict()
    assert torch.equal(found["two.weight"], before.state_dict()["one.weight"])
    assert torch.equal(found["second.weight"], before.state_dict()["first.weight"])


def other(change: Callable[[WideDeep], object]) -> WideDeep:
    module = WideDeep()
    change(module)
    return module


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            other(lambda m: m.network.append(nn.Linear(1, 3))),
            [
                r"missing there: 'network.3.weight', float32 of shape \(3, 1\)",
                r"missing there: 'network.3.bias', float32 of shape \(3,\)",
            ],
        ),
        (
            other(lambda m: setattr(m, "users", nn.Identity())),
            [r"only there: 'users.weight', table of 8 rows of float32\[4\]"],
        ),
        (
            other(lambda m: setattr(m, "ads", nn.Embedding(11, 4))),
            [r"different: 'ads.weight': there table of 10 rows of float32\[4\], here table of 11"],
        ),
        (
            other(lambda m: m.network.double()),
            [r"'network.0.weight': there float32 of shape \(5, 16\), here float64"],
        ),
        (
            other(lambda m: m.users.weight.requires_grad_(False)),
            [r"only there: 'users.weight'", r"missing there: 'users.weight', .* on no server"],
        ),
    ],
    ids=["a layer more", "a table less", "more rows", "wider", "frozen"],
)
def test_what_does_not_fit_is_refused_with_the_differences(module: Any, said: list[str]) -> None:
    strategy, state = learned()
    with pytest.raises(ConfigurationError, match=r"'WideDeep' does not fit what") as refused:
        psnb.torch.distribute(module, strategy)
    for each in said:
        assert refused.match(rf"(?s){each}")
    assert refused.match("nothing was changed.*another name=")
    model = psnb.torch.distribute(WideDeep(), strategy)  # it is still there to be taken up
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_an_initializer_that_is_another_one_is_refused() -> None:
    strategy = InProcessStrategy()
    distributed(Any64(initializer=0.5), strategy)
    with pytest.raises(ConfigurationError, match=r"'words': there .*0\.5.*, here .*0\.25"):
        psnb.torch.distribute(Any64(initializer=0.25), strategy.again())


def test_an_optimizer_of_another_kind_is_refused() -> None:
    strategy, _ = learned()
    said = r"optimizer of 'network.0.weight', .*: there SGD\(.*, here Adam\("
    with pytest.raises(ConfigurationError, match=said):
        psnb.torch.distribute(WideDeep(), strategy, sparse=SGD(0.5), dense=Adam(0.5))


def test_hyperparameters_stay_as_servers_have_them_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, _ = learned()
    with caplog.at_level(logging.WARNING, "psnb"):
        model = psnb.torch.distribute(WideDeep(), strategy, sparse=SGD(0.5), dense=SGD(0.125))
    assert "keeps what the servers have: learning_rate=0.5 (not 0.125)" in caplog.text
    assert caplog.text.count("keeps what the servers have") == 1
    (variable,) = model.variables
    assert variable.optimizer is not None
    assert variable.optimizer.learning_rate == 0.5


def test_a_cell_that_runs_again_must_say_what_is_meant() -> None:
    strategy = InProcessStrategy()
    first = distributed(WideDeep(), strategy)
    step(first)
    with pytest.raises(ConfigurationError, match=r"adopt=True goes on .* name= places another"):
        distributed(WideDeep(), strategy)
    with pytest.raises(ConfigurationError, match=r"adopt=False: .* 'WideDeep' already"):
        distributed(WideDeep(), strategy, adopt=False)
    second = distributed(WideDeep(), strategy, adopt=True)
    step(second)
    for key, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[key], value), key


def test_what_was_taken_up_is_this_process_own_from_then_on() -> None:
    strategy, _ = learned()
    psnb.torch.distribute(WideDeep(), strategy)
    with pytest.raises(ConfigurationError, match="was distributed in this process"):
        psnb.torch.distribute(WideDeep(), strategy)


def test_to_adopt_what_is_not_there_is_refused() -> None:
    strategy, _ = learned()
    with pytest.raises(ConfigurationError, match=r"no model called 'mine' .*: 'WideDeep'"):
        distributed(WideDeep(), strategy, name="mine", adopt=True)
    with pytest.raises(ConfigurationError, match="it has none"):
        distributed(WideDeep(), adopt=True)
    with pytest.raises(ConfigurationError, match="adopt must be True, False or None, found 'mine'"):
        distributed(WideDeep(), adopt="mine")


def test_a_model_of_another_name_begins_untrained_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, state = learned()
    with caplog.at_level(logging.WARNING, "psnb"):
        distributed(WideDeep(), strategy, name="mine")
    assert "model 'mine' begins untrained" in caplog.text
    assert "Of 'WideDeep' it has one" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "psnb"):
        distributed(WideDeep(), strategy, name="other", adopt=False)
        distributed(WideDeep(), InProcessStrategy(), name="other")
    assert not caplog.text
    model = psnb.torch.distribute(WideDeep(), strategy)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_a_partly_placed_model_is_not_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = InProcessStrategy()
    made = strategy.embedding

    def interrupted(name: str, *arguments: Any, **options: Any) -> Any:
        if "users" in name:
            raise KeyboardInterrupt
        return made(name, *arguments, **options)

    monkeypatch.setattr(strategy, "embedding", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distributed(WideDeep(), strategy)
    for adopt in (None, False):
        with pytest.raises(ConfigurationError, match="of no model that was placed wholly"):
            distributed(WideDeep(), strategy.again(), adopt=adopt)


def frozen(seed: int) -> WideDeep:
    torch.manual_seed(seed)
    module = WideDeep()
    module.users.weight.requires_grad_(False)
    return module


def test_frozen_embeddings_which_no_server_has_must_be_equal() -> None:
    strategy = InProcessStrategy()
    distributed(frozen(1), strategy)
    with pytest.raises(ConfigurationError, match=r"'users.weight': there .* with checksum"):
        psnb.torch.distribute(frozen(2), strategy.again())
    psnb.torch.distribute(frozen(1), strategy.again())


def test_frozen_embeddings_that_were_loaded_are_those_that_must_be_equal() -> None:
    strategy = InProcessStrategy()
    model = distributed(frozen(1), strategy)
    model.load_state_dict(frozen(2).state_dict())
    with pytest.raises(ConfigurationError, match=r"'users.weight': there"):
        psnb.torch.distribute(frozen(1), strategy.again())
    psnb.torch.distribute(frozen(2), strategy.again())
