"""Tests of states: loading and reading them; servers in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psnb.torch
from psnb._src.server.optimizers import Adagrad
from psnb.errors import (
    InvalidArrayError,
)
from tests.models.torch.wide_deep import (
    Normed,
    WideDeep,
    assert_same,
    distributed,
    loss_of,
)


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
    with pytest.raises(InvalidArrayError, match=r"'norm.running_mean' was made with shape \(3,\)"):
        model.load_state_dict({**state, "mask": module.mask, "norm.running_mean": torch.zeros(4)})
    assert_same(model, module)


def test_a_state_of_another_model_changes_nothing() -> None:
    module = WideDeep()
    model = distributed(module)
    state = module.state_dict()
    with pytest.raises(
        InvalidArrayError, match=r"1 keys are unexpected, such as \['more'\].*strict=False"
    ):
        model.load_state_dict({**state, "more": torch.zeros(1)})
    with pytest.raises(InvalidArrayError, match=r"'users.weight' was made with shape \(8, 4\)"):
        model.load_state_dict({**state, "users.weight": torch.zeros(9, 4)})
    with pytest.raises(InvalidArrayError, match=r"'network.0.bias' was made with shape \(5,\)"):
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


class Hashed(nn.Module):
    """A table of any id beside a parameter that learns, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = psnb.torch.Embedding(dim=3), nn.Linear(3, 1)
        self.out.bias.requires_grad_(False)
        self.still = nn.Embedding(2, 3).requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids) + self.still(ids % 2)).sum()


def trained() -> tuple[psnb.torch.DistributedModel, dict[str, Any]]:
    model = distributed(Hashed(), sparse=Adagrad(0.1))
    with model.step():
        model(torch.tensor([3, 2**62])).backward()
    return model, dict(model.state_dict())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table.ids": torch.tensor([1.0, 2.0])}, r"'table.ids'.*float32: ids are integers"),
        ({"table.ids": torch.tensor([[1, 2]])}, r"'table.ids' was made with shape \(n,\)"),
        ({"table.ids": torch.tensor([5, 5])}, r"ids more than once, such as \[5\]"),
        ({"table.rows": torch.zeros(2, 4)}, r"'table.rows' was made with shape \(2, 3\).*\(2, 4\)"),
        ({"table.rows": torch.zeros(1, 3)}, r"'table.rows' was made with shape \(2, 3\).*\(1, 3\)"),
        ({"table.rows": None}, "'table.rows' of the state is of type NoneType"),
        ({"out.weight": [[1.0, 2.0, 3.0]]}, "'out.weight' of the state is of type list"),
        ({"out.weight": torch.zeros(1, 3, dtype=torch.complex64)}, "complex64, and the model"),
        ({"out.bias": torch.zeros(2)}, r"'out.bias' was made with shape \(1,\)"),
        ({"still.weight": torch.zeros(2)}, "what stays on workers cannot be loaded.*still.weight"),
    ],
)
def test_a_state_that_is_wrong_anywhere_changes_nothing(
    changed: dict[str, Any], message: str
) -> None:
    model, state = trained()
    others = {key: value + 1 for key, value in state.items()}
    with pytest.raises(InvalidArrayError, match=f"(?s){message}"):
        model.load_state_dict({**others, **changed})
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0, msg=key)


def test_a_table_of_any_id_has_the_rows_of_the_state_and_no_others() -> None:
    model, state = trained()
    more = torch.tensor([7, 3])
    with model.step():
        model(more).backward()
    used = model.tables["table"].statistics().rows
    model.load_state_dict(state)
    assert used == 3
    assert model.state_dict()["table.ids"].tolist() == [3, 2**62]
    torch.testing.assert_close(model.state_dict()["table.rows"], state["table.rows"])
    with model.step():
        model(more).backward()  # both ways of getting rows go on
    assert model.tables["table"].statistics().rows == 3


def test_without_strict_what_is_in_both_is_loaded() -> None:
    module = WideDeep()
    model = distributed(module)
    state = {"users.weight": torch.ones(8, 4), "network.0.bias": torch.ones(5), "more": None}
    found = model.load_state_dict(state, strict=False)
    expected = module.load_state_dict(state, strict=False)
    assert found.missing_keys == expected.missing_keys
    assert found.unexpected_keys == expected.unexpected_keys == ["more"]
    assert_same(model, module)
    assert model.load_state_dict(module.state_dict()) == ([], [])


def test_half_of_a_table_of_any_id_is_refused() -> None:
    model, state = trained()
    for key in ("table.ids", "table.rows"):
        with pytest.raises(InvalidArrayError, match=f"the state has '{key}' alone"):
            model.load_state_dict({key: state[key]}, strict=False)


def test_values_are_loaded_in_the_dtype_of_the_model() -> None:
    module = WideDeep()
    model = distributed(module)
    state = {key: value.bfloat16() for key, value in WideDeep().state_dict().items()}
    model.load_state_dict(state)
    module.load_state_dict(state)
    assert_same(model, module)


def test_double_precision_and_narrow_ids_are_loaded_as_they_are() -> None:
    module = nn.Linear(2, 1).double()
    model = distributed(module, sparse=None)
    state = {key: value + 1e-12 for key, value in module.state_dict().items()}
    model.load_state_dict(state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])
    table = distributed(psnb.torch.Embedding(dim=1), dense=None)
    table.load_state_dict({"ids": torch.tensor([3], dtype=torch.int16), "rows": torch.ones(1, 1)})
    assert table.state_dict()["ids"].tolist() == [3]


def test_of_several_keys_of_one_value_the_last_counts_as_in_torch() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    model = distributed(module)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    state["0.weight"] += 1
    state["1.weight"] += 2
    model.load_state_dict(state)
    module.load_state_dict(state)
    assert_same(model, module)


def test_a_table_of_any_id_alone_is_a_model_with_a_state() -> None:
    module = psnb.torch.Embedding(dim=2)
    model = distributed(module, dense=None)
    with model.step():
        model(torch.tensor([5])).sum().backward()
    module.load_state_dict(model.state_dict())
    assert module.ids.tolist() == [5]


def test_frozen_values_are_loaded_where_the_model_computes() -> None:
    model, state = trained()
    ids = torch.tensor([3])
    before = model.eval()(ids)
    model.load_state_dict({**state, "out.bias": state["out.bias"] + 2})
    torch.testing.assert_close(model(ids), before + 2)
    moved = state["still.weight"] + 1
    model.load_state_dict({"still.weight": moved}, strict=False)
    torch.testing.assert_close(model(ids), before + 2 + state["out.weight"].sum())
    assert not model.training
