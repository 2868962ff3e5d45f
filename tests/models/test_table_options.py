"""How servers keep the tables of a model: `tables=` of `distribute`, at both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.client.handles import shards_of
from psnb._src.models.keras.compiled import CompiledModel
from psnb._src.models.keras.split import split
from psnb._src.server.optimizers import SGD, Adagrad
from psnb.errors import ConfigurationError, InvalidArrayError
from tests.models.placing import InProcessStrategy

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

SHARDS, ROWS, DIM = 2, 6, 2


class Rows(nn.Module):
    """A table of fixed rows, and one of any id."""

    def __init__(self, known: int = 0) -> None:
        super().__init__()
        self.ads, self.users = nn.Embedding(ROWS, DIM), psnb.torch.Embedding(DIM, 0.5)
        self.users.ids = torch.arange(known)
        self.users.rows = torch.ones(known, DIM)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.ads(ids % ROWS) + self.users(ids)).sum()


def torch_door(strategy: InProcessStrategy, **options: Any) -> psnb.torch.DistributedModel:
    return psnb.torch.distribute(Rows(), strategy, sparse=Adagrad(0.1), dense=SGD(0.1), **options)


def keras_door(strategy: InProcessStrategy, **options: Any) -> CompiledModel:
    ids = keras.Input((1,), dtype="int64")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, DIM, name="ads")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    given = strategy, "model", split(model), Adagrad(0.1), SGD(0.1), None, {"loss": "mse"}
    return CompiledModel(*given, **options)


Door = Callable[..., Any]
FIXED = pytest.mark.parametrize(
    ("door", "name", "there"),
    [(torch_door, "ads.weight", "Rows.ads.weight"), (keras_door, "ads", "model.ads")],
    ids=["torch", "keras"],
)


@FIXED
def test_servers_keep_a_table_as_its_options_say(door: Door, name: str, there: str) -> None:
    strategy = InProcessStrategy(SHARDS)
    options = {"dtype": "bfloat16", "slot_dtype": "bfloat16"}
    door(strategy, tables={name: options})
    table = strategy.parameters[there]
    assert (str(table.stored_dtype), table.dtype) == ("bfloat16", np.float32)  # type: ignore[union-attr]
    assert str(shards_of(table).spec.slot_dtype) == "bfloat16"  # type: ignore[arg-type]
    assert table.lookup(range(ROWS)).any(1).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stars": {}}, r"no table 'stars'; those that it has are \["),
        ([("ads", {})], "tables must be a mapping such as"),
        ({...: 1}, "must be a mapping such as"),
        ({...: {"rows": 3}}, "no option 'rows'.* Options are dtype, slot_dtype, storage"),
        ({...: {"optimizer": SGD(1.0)}}, "no option 'optimizer'"),
        ({...: {"dtype": "float64"}}, "is of float32 in the model"),
        ({...: {"dtype": "int8"}}, "dtype must be float32, float64, bfloat16 or float16"),
        ({...: {"slot_dtype": "float16"}}, "slot_dtype cannot be float16"),
        ({...: {"storage": "tape"}}, "storage"),
        ({...: {"max_rows": 3}}, "6 rows, which are always there.*psnb.torch.Embedding"),
    ],
)
@FIXED
def test_what_cannot_be_is_refused_before_anything_is_placed(
    door: Door, name: str, there: str, options: Any, message: str
) -> None:
    strategy = InProcessStrategy(SHARDS)
    given = {name if key is ... else key: e for key, e in dict(options).items()}
    with pytest.raises(ConfigurationError, match=message):
        door(strategy, tables=given if isinstance(options, dict) else options)
    assert not strategy.parameters
    door(strategy)


@FIXED
def test_an_adopted_table_must_be_kept_as_the_options_say(
    door: Door, name: str, there: str
) -> None:
    strategy = InProcessStrategy(SHARDS)
    half = {name: {"dtype": "bfloat16"}}
    door(strategy, tables=half)
    door(strategy.again())
    door(strategy.again(), tables=half)
    for wrong in ({"dtype": "float16"}, {"slot_dtype": "bfloat16"}, {"storage": "disk"}):
        with pytest.raises(ConfigurationError, match=r"there dtype bfloat16.*, here dtype"):
            door(strategy.again(), tables={name: wrong})


# Tables of any id, which modules of PyTorch have.


def rows_of(count: int) -> dict[str, Any]:
    return {"ids": torch.arange(count), "rows": torch.full((count, DIM), 2.0)}


def bounded(known: int = 0, **options: Any) -> psnb.torch.DistributedModel:
    module = Rows(known).users
    strategy = InProcessStrategy(SHARDS)
    return psnb.torch.distribute(
        module, strategy, sparse=Adagrad(0.1), tables={"embedding": options}
    )


def test_a_table_of_any_id_has_the_bound_of_its_options() -> None:
    model = bounded(max_rows=4, evict="lfu", time_to_live=1_000)
    table = model.tables["embedding"]
    for ids in (range(4), range(4, 40)):
        for each in ids:
            with model.step():
                model(torch.tensor([each])).sum().backward()
    assert table.statistics().rows == 4
    assert table.statistics().evicted == 36


@pytest.mark.parametrize("options", [{"max_rows": 20}, {"max_bytes": 20 * 50}])
def test_more_rows_than_the_bound_are_not_placed(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"30 rows at once.*Nothing was placed"):
        bounded(30, **options)
    assert bounded(4, **options).tables["embedding"].statistics().rows == 4


def test_rows_that_one_shard_may_not_have_are_refused_though_all_together_would_fit() -> None:
    model = bounded(max_rows=8)
    spread = shards_of(model.tables["embedding"])
    ids = np.arange(100, dtype=np.uint64)
    alike = torch.from_numpy(ids[spread.owners(ids) == 0].astype(np.int64))
    with pytest.raises(InvalidArrayError, match="5 of them in one of its 2 shards, which may"):
        model.load_state_dict({"ids": alike[:5], "rows": torch.ones(5, DIM)})
    model.load_state_dict({"ids": alike[:4], "rows": torch.ones(4, DIM)})


def test_a_state_with_more_rows_than_the_bound_changes_nothing() -> None:
    model = psnb.torch.distribute(
        Rows(2),
        InProcessStrategy(SHARDS),
        sparse=Adagrad(0.1),
        dense=SGD(0.1),
        tables={"users": {"max_rows": 12}},
    )
    before = model.state_dict()
    new = {**before, "ads.weight": before["ads.weight"] + 1}
    new |= {f"users.{key}": value for key, value in rows_of(30).items()}
    with pytest.raises(InvalidArrayError, match=r"30 rows at once.*Nothing was changed"):
        model.load_state_dict(new)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    new |= {f"users.{key}": value for key, value in rows_of(4).items()}
    model.load_state_dict(new)
    assert torch.equal(model.state_dict()["users.rows"], torch.full((4, DIM), 2.0))


def test_rows_that_are_not_admitted_are_zeros_in_a_step() -> None:
    model = bounded(admission=psnb.CountFilter(2))
    ids = torch.tensor([5])
    found = []
    for _ in range(2):
        with model.step():
            loss = model(ids).sum()
            loss.backward()
        found.append(loss.item())
    assert found[0] == 0 < found[1]
