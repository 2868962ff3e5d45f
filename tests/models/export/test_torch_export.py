"""Tests of exported PyTorch models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.server.optimizers import SGD
from psnb.data import Ragged
from psnb.errors import ConfigurationError
from psnb.torch import TensorBags
from tests.models.export.followed import manager_of
from tests.models.placing import InProcessStrategy


class WideDeep(nn.Module):
    """Tables of fixed rows and of any id, one that is used twice, bags, and a network."""

    def __init__(self, mode: str = "mean", **options: Any) -> None:
        super().__init__()
        self.ads = nn.Embedding(10, 4, padding_idx=0)
        self.users = psnb.torch.Embedding(4, 0.5)
        self.words = nn.EmbeddingBag(12, 4, mode=mode, padding_idx=2, **options)
        self.norm = nn.BatchNorm1d(16)
        self.network = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 1))

    def forward(self, ids: Tensor, words: TensorBags) -> Any:
        rows = [self.ads(ids[:, 0]), self.users(ids[:, 1] + 2**40), self.users(ids[:, 2])]
        found = self.norm(torch.cat([*rows, self.words(*words)], 1))
        return {"logit": self.network(found).squeeze(1), "parts": (found, ids)}


IDS = torch.tensor([[1, 7, 7], [0, 2, 7], [1, 3, 2], [9, 7, -1]])
WORDS = Ragged.from_rows([[3, 1, 3], [], [2], [5, 2, 11]], np.int64)


def distributed(module: nn.Module) -> psnb.torch.DistributedModel:
    made = psnb.torch.distribute(module, InProcessStrategy(), sparse=SGD(0.5), dense=SGD(0.5))
    with made.step():
        found = made(IDS, psnb.torch.as_torch(WORDS))
        found["logit"].square().sum().backward()
    return made.eval()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_it_predicts_what_the_distributed_model_does(tmp_path: Path, mode: str) -> None:
    model = distributed(WideDeep(mode))
    loaded = psnb.load_model(psnb.export(tmp_path / "model", model, example=(IDS, WORDS)))
    for rows in (slice(0, 4), slice(3, 4), slice(1, 2), slice(1, 4)):
        ids, words = IDS[rows], WORDS[rows]
        expected = model(ids, psnb.torch.as_torch(words))
        found = loaded.predict({"ids": ids.numpy(), "words": words})
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(found["logit"], expected["logit"].detach(), atol=1e-6)
        np.testing.assert_allclose(found["parts"][0], expected["parts"][0].detach(), atol=1e-6)
        np.testing.assert_array_equal(found["parts"][1], ids)


class Tied(nn.Module):
    """A weight with two names, and a buffer of integers, which servers have as floats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.first.weight = self.second.weight
        self.register_buffer("scale", torch.tensor(2))

    def forward(self, x: Tensor) -> Any:
        return self.first(self.second(x)) * self.scale, self.scale + 0


def test_it_follows_checkpoints(tmp_path: Path) -> None:
    strategy = InProcessStrategy()
    options: dict[str, Any] = {"sparse": SGD(0.5), "dense": SGD(0.5)}
    wide = psnb.torch.distribute(WideDeep(), strategy, name="wide", **options)
    tied = psnb.torch.distribute(Tied(), strategy, name="tied", **options)
    manager, words, x = manager_of(strategy, tmp_path), psnb.torch.as_torch(WORDS), torch.ones(2, 3)
    loaded = [
        psnb.load_model(psnb.export(tmp_path / name, model.eval(), example=batch, follow=manager))
        for name, model, batch in (("wide", wide, (IDS, WORDS)), ("tied", tied, (x,)))
    ]
    wide.train(), tied.train()
    with wide.step():
        wide(IDS, words)["logit"].square().sum().backward()
    with tied.step():
        tied(x)[0].square().sum().backward()
    tied.load_state_dict({"scale": torch.tensor(5)}, strict=False)
    manager.save()
    assert [each.refresh() for each in loaded] == [True, True]
    with torch.no_grad():
        logit, product = wide.eval()(IDS, words)["logit"], tied.eval()(x)
    found = loaded[0].predict({"ids": IDS.numpy(), "words": WORDS})["logit"]
    np.testing.assert_allclose(found, logit, atol=1e-6)
    found, scale = loaded[1].predict({"x": x.numpy()})
    np.testing.assert_allclose(found, product[0], atol=1e-6)
    assert (scale, scale.dtype) == (5, np.int64)


class Linear(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.table, self.linear, self._forward = nn.Embedding(10, 4), nn.Linear(4, 2), forward

    def forward(self, batch: Any) -> Any:
        return self._forward(self, batch)


def plain(self: Any, batch: Any) -> Any:
    return self.linear(self.table(batch["ids"])) * batch["scale"]


def as_script(self: Any, batch: Any) -> Any:
    return plain(self, batch) if float(batch["ids"].sum()) > 3 else batch["ids"]


def test_a_batch_may_be_one_argument_and_of_one_example(tmp_path: Path) -> None:
    model = psnb.torch.distribute(Linear(plain), InProcessStrategy(), sparse=SGD(1), dense=SGD(1))
    model.eval()
    example = {"ids": np.array([[1, 2]]), "scale": np.float32(3), "more": np.zeros(1)}
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=example))
    assert [feed.name for feed in loaded.feeds] == ["ids", "scale"]
    batch = {"ids": np.arange(10).reshape(5, 2), "scale": np.float32(2)}
    with torch.no_grad():
        expected = model(psnb.torch.as_torch(batch))
    np.testing.assert_allclose(loaded.predict(batch), expected, atol=1e-6)


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Scaled(Linear):
    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        return self._forward(self, {"ids": ids, "scale": scale})


def test_a_field_that_forward_does_not_take_is_named(tmp_path: Path) -> None:
    model = psnb.torch.distribute(Scaled(plain), InProcessStrategy(), sparse=SGD(1), dense=SGD(1))
    example = {"ids": np.ones((2, 2), int), "scale": np.ones(1), "label": np.ones(2)}
    with pytest.raises(ConfigurationError, match=r"fit forward\(ids: .*scale: .* 'label'"):
        psnb.export(tmp_path / "m", model.eval(), example=example)


@pytest.mark.parametrize(
    ("forward", "example", "said"),
    [
        (as_script, {"ids": np.ones((2, 2), int), "scale": np.float32(1)}, "batches of any size"),
        (lambda self, batch: 7, {"ids": np.ones((2, 2), int)}, "^psnb.export: forward returns int"),
        (
            lambda self, batch: vars(torch)["ops"].tests.doubled(self.table(batch["ids"])),
            {"ids": np.ones((2, 2), int)},
            "^psnb.export: the module calls tests.doubled.default, which is not an operator of",
        ),
        (plain, None, "needs example="),
        (plain, (1, 2, 3), "does not fit forward"),
        (plain, pd.DataFrame({"ids": [1]}), r"which dict\(frame\) makes of a frame"),
        (
            lambda self, batch: self.linear(self.table(batch["ids"]).reshape(-1, 4)),
            {"ids": np.ones((2, 2), np.float32)},
            r"the ids of '.*' are of torch.float32: give integers",
        ),
        (
            lambda self, batch: self.linear(self.table(batch["ids"])[:3].reshape(3, -1)[:, :4]),
            {"ids": np.ones((3, 2), int)},
            "batches of any size",
        ),
    ],
    ids=[
        "a branch on data",
        "no tensor",
        "an own operator",
        "no example",
        "arguments",
        "a frame",
        "ids that are none",
        "one size",
    ],
)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_what_cannot_be_exported_is_reported(
    tmp_path: Path, forward: Any, example: Any, said: str
) -> None:
    module = Linear(forward)
    model = psnb.torch.distribute(module, InProcessStrategy(), sparse=SGD(1), dense=SGD(1))
    with pytest.raises(ConfigurationError, match=said):
        psnb.export(tmp_path / "m", model, example=example)
    assert list(tmp_path.iterdir()) == []


class Pair(NamedTuple):
    """A batch, or what a model returns of it."""

    ids: Tensor
    x: Any


@dataclass
class Batch:
    """The same as a data class."""

    ids: Tensor
    x: Any


def of_parts(self: Any, batch: Any) -> Any:
    return Pair(self.linear(self.table(batch.ids)).sum(1) * batch.x, {"kept": batch.ids})


@pytest.mark.parametrize("kind", [Pair, Batch])
@pytest.mark.parametrize("inner", [False, True], ids=["alone", "within another"])
def test_named_tuples_and_data_classes_have_their_names(
    tmp_path: Path, kind: Any, inner: bool
) -> None:
    forward = (lambda self, batch: of_parts(self, batch["pair"])) if inner else of_parts
    model = psnb.torch.distribute(Linear(forward), InProcessStrategy(), sparse=SGD(1), dense=SGD(1))
    model.eval()
    ids, x = torch.arange(6).reshape(3, 2), torch.ones(3, 1)
    given = {"pair": kind(ids, x)} if inner else kind(ids, x)
    with torch.no_grad():
        expected = model(given)
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=given))
    prefix = "pair." if inner else ""
    assert [feed.name for feed in loaded.feeds] == [f"{prefix}ids", f"{prefix}x"]
    assert [fetch.name for fetch in loaded.fetches] == ["ids", "x.kept"]
    found = loaded.predict({f"{prefix}ids": ids.numpy(), f"{prefix}x": x.numpy()})
    assert (type(found).__name__, found._fields) == ("Pair", ("ids", "x"))
    np.testing.assert_allclose(found.ids, expected.ids, atol=1e-6)
    np.testing.assert_array_equal(found.x["kept"], ids)


def test_a_named_tuple_may_be_the_arguments(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            return ids * x

    model = psnb.torch.distribute(Two(), InProcessStrategy()).eval()
    example = Pair(torch.arange(3), torch.ones(3))
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=example))
    assert [feed.name for feed in loaded.feeds] == ["ids", "x"]


class Prompted(nn.Module):
    """Ids that are constants of the module, of one number in all among them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bias = nn.Embedding(9, 4), nn.Embedding(9, 1)
        self.any = psnb.torch.Embedding(4, 0.5)
        self.register_buffer("positions", torch.arange(3))

    def forward(self, ids: Tensor) -> Tensor:
        constant = self.table(torch.tensor([0])) + self.bias(torch.tensor(4))
        found: Tensor = self.table(ids).sum(1) + constant + self.any(torch.tensor([[7]]))[0]
        return found + self.table(self.positions).sum(0) + self.table(torch.arange(2)).sum(0)


def test_ids_that_are_constants_are_looked_up(tmp_path: Path) -> None:
    strategy, ids = InProcessStrategy(), torch.tensor([[1, 2], [0, 8]])
    model = psnb.torch.distribute(Prompted(), strategy, sparse=SGD(0.5), dense=SGD(0.5))
    manager = manager_of(strategy, tmp_path)
    with model.step():
        model(ids).square().sum().backward()
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model.eval(), example=ids, follow=manager))
    for _ in range(2):
        with torch.no_grad():
            expected = model.eval()(ids)
        np.testing.assert_allclose(loaded.predict(ids.numpy()), expected, rtol=1e-5)
        model.train()
        with model.step():
            model(ids).sum().backward()
        manager.save()
        assert loaded.refresh()


class Hooked(nn.Module):
    """A hook of an embedding, and parameters that a function and a list refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.table.register_forward_hook(lambda module, args, rows: 3 * rows)
        self.score = lambda rows: self.out(rows).sum(1)
        self.kept = [self.out.weight]

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.score(self.table(ids)) * self.kept[0].square().sum()
        return found


def test_hooks_and_references_are_those_of_the_model_also_when_it_follows(tmp_path: Path) -> None:
    strategy, ids = InProcessStrategy(), IDS[:, 0]
    model = psnb.torch.distribute(Hooked(), strategy, sparse=SGD(0.01), dense=SGD(0.01))
    manager = manager_of(strategy, tmp_path)
    folder = psnb.export(tmp_path / "model", model.eval(), example=ids, follow=manager)
    loaded = psnb.load_model(folder)
    for _ in range(2):
        with torch.no_grad():
            expected = model.eval()(ids)
        np.testing.assert_allclose(loaded.predict({"ids": ids.numpy()}), expected, rtol=1e-5)
        model.train()
        with model.step():
            model(ids).sum().backward()
        manager.save()
        assert loaded.refresh()


def test_all_rows_of_a_table_cannot_be_exported(tmp_path: Path) -> None:
    class Whole(Hooked):
        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids) @ self.table.weight.T

    model = psnb.torch.distribute(Whole(), InProcessStrategy(), sparse=SGD(0.1), dense=SGD(0.1))
    with pytest.raises(ConfigurationError, match="uses all rows of an embedding"):
        psnb.export(tmp_path / "model", model.eval(), example=IDS[:, 0])


def test_what_cannot_be_traced_is_reported_by_the_users_own_line(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x) if x.sum() > 0 else x

    model = psnb.torch.distribute(Branching(), InProcessStrategy(), dense=SGD(0.5)).eval()
    with pytest.raises(ConfigurationError, match="decides by the values of a tensor") as raised:
        psnb.export(tmp_path / "model", model, example=torch.ones(3, 2))
    assert "\n" not in str(raised.value)
    (note,) = raised.value.__notes__
    assert "in forward\n    return self.out(x) if x.sum() > 0 else x" in note
    assert "direct cause" not in "".join(format_exception(raised.value))


class PaddedEncoder(nn.Module):
    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
        self.words = nn.Embedding(11, 8)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), not norm_first)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.layers(self.words(ids), src_key_padding_mask=ids == 0)
        return found.mean(1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "norm_first",
    [pytest.param(False, marks=pytest.mark.second_tier("the same with norms elsewhere")), True],
)
def test_an_encoder_gives_for_padding_what_the_model_gives(
    tmp_path: Path, norm_first: bool
) -> None:
    module, strategy = PaddedEncoder(norm_first=norm_first), InProcessStrategy()
    model = psnb.torch.distribute(module, strategy, sparse=SGD(0.5), dense=SGD(0.5)).eval()
    at_end = torch.tensor([[3, 4, 5, 0, 0], [7, 8, 9, 1, 2], [4, 0, 0, 0, 0]])
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=(at_end,)))
    for ids in (at_end, at_end.flip(1), at_end[:, [0, 3, 1, 2, 4]], at_end + 1):
        with torch.no_grad():
            expected = model(ids)
        found = torch.as_tensor(loaded.predict({"ids": ids.numpy()}))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
