"""What a model in PyTorch says that a step does; servers in this process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import psnb.torch
from psnb._src.server.optimizers import SGD
from tests.models.placing import InProcessStrategy

IDS, X = torch.tensor([[1, 2], [2, 3]]), torch.ones(2, 3)


class Scored(nn.Module):
    """Scores rows and numbers, with dropout and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 4)
        self.layers = nn.Sequential(nn.BatchNorm1d(11), nn.Dropout(0.5), nn.Linear(11, 1))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([self.rows(ids).flatten(1), x], 1))
        return found


def distributed() -> tuple[psnb.torch.DistributedModel, InProcessStrategy]:
    strategy = InProcessStrategy()
    model = psnb.torch.distribute(Scored(), strategy, sparse=SGD(0.1), dense=SGD(0.1), name="m")
    return model, strategy


def test_a_description_begins_with_the_pull_and_ends_with_backward_and_the_push() -> None:
    to_config = distributed()[0].describe(IDS, X)
    names = [each.name for each in to_config]
    count = names.index("Embedding")
    assert set(names[:count]) == {"pull"}
    assert names[-count - 1] == "backward"
    assert set(names[-count:]) == {"push"}
    assert to_config[0].note.startswith("embedding 'm.rows.weight' on server ")
    assert to_config[0].outputs == ("f32[rows,4]",)
    assert [each.inputs for each in to_config[-count:]] == [
        each.outputs for each in to_config[:count]
    ]


def test_modules_are_listed_in_the_order_of_their_calls_with_the_operations_in_them() -> None:
    to_config = distributed()[0].describe(IDS, X)
    modules = [
        (each.note, each.depth) for each in to_config if each.note and each.name != "backward"
    ]
    assert [each for each in modules if "'" not in each[0]] == [
        ("rows", 0),
        ("layers", 0),
        ("layers.0", 1),
        ("layers.1", 1),
        ("layers.2", 1),
    ]
    names = [each.name for each in to_config]
    assert names[names.index("Embedding") + 1 :][:3] == ["view", "embedding", "view"]
    linear = next(each for each in to_config if each.name == "addmm")
    assert (linear.depth, linear.outputs) == (2, ("f32[2,1]",))


def test_a_description_writes_nothing_and_leaves_the_modules_as_they_were() -> None:
    model, _ = distributed()
    before = model.state_dict()
    mean = model.module.layers[0].running_mean.clone()
    model.describe(IDS, X)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(model.module.layers[0].running_mean, mean)
    assert not model.module._forward_pre_hooks
    assert not model.module.rows._forward_pre_hooks
