"""References to modules and parameters from anywhere lead to what is served: as in torch alone."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psnb.torch
from psnb._src.protocol.packing import dumps, loads
from psnb._src.server.optimizers import SGD, Adam
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy
from tests.models.torch.wide_deep import RATE, assert_same, distributed

IDS = torch.tensor([1, 4, 4, 7])


class Net(nn.Module):
    """A table and a layer, and whatever refers to them."""

    extra: Any
    decayed: Any

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.out(self.table(ids)).square().mean()
        return loss + self.more(ids)

    def more(self, ids: Tensor) -> Any:
        return 0.0


def assert_learns_as_alone(alone: nn.Module, *, steps: int = 3, **options: Any) -> None:
    """Train a copy on servers, and the module itself with torch alone."""
    torch.manual_seed(0)
    model = distributed(alone, **{"sparse": SGD(0.1), "dense": SGD(0.1), **options})
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(steps):
        with model.step():
            loss = model(IDS)
            loss.backward()
        optimizer.zero_grad()
        expected = alone(IDS)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected)
    assert_same(model, alone)


class Captured(Net):
    """A function in an attribute that has captured the module."""

    def __init__(self) -> None:
        super().__init__()
        self.score = lambda rows: rows @ self.table.weight.T + self.out.weight.sum()

    def more(self, ids: Tensor) -> Any:
        return nn.functional.cross_entropy(self.score(self.table(ids)), ids)


class Listed(Net):
    """Parameters in a list beside the module."""

    def __init__(self) -> None:
        super().__init__()
        self.decayed = [self.table.weight, self.out.weight]

    def more(self, ids: Tensor) -> Any:
        return sum(each.square().sum() for each in self.decayed)


class Penalised(Net):
    """A penalty over all parameters, and over some by their names."""

    def more(self, ids: Tensor) -> Any:
        named = {name: each for name, each in self.named_parameters() if each.ndim > 1}
        assert list(named) == ["table.weight", "out.weight"]
        return sum(each.square().sum() for each in self.parameters()) + named["table.weight"].norm()


class Fields(Net):
    """Modules in a dict beside the module."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Embedding(9, 4)
        self.extra = {"in order": [self.table, self.second], "last": self.out}

    def more(self, ids: Tensor) -> Any:
        rows = sum(table(ids) for table in self.extra["in order"])
        return self.extra["last"](rows).square().sum()


class Helper:
    """An object that holds a module, and a function of one of its parameters."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.scaled = functools.partial(torch.mul, net.out.weight)

    def penalty(self) -> Tensor:
        return self.net.table.weight.abs().sum() + self.scaled(2.0).square().sum()


class Helped(Net):
    """A method of an object of the user, which holds the module."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = Helper(self).penalty

    def more(self, ids: Tensor) -> Any:
        return self.extra()


class Scaled(nn.Embedding):
    """An embedding with a method of its own."""

    def scaled(self, ids: Tensor) -> Tensor:
        return self(ids) * self.embedding_dim**0.5


class Subclassed(Net):
    """An embedding of a class of its own, that is asked what embeddings are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Scaled(9, 4)

    def more(self, ids: Tensor) -> Any:
        ids = ids.to(self.table.weight.device) % self.table.num_embeddings
        return self.table.scaled(ids).square().sum() * len(self.table.weight)


class Directly(Net):
    """A weight that functions are given."""

    def more(self, ids: Tensor) -> Any:
        weight = self.table.weight
        rows = nn.functional.embedding(ids, weight, padding_idx=-2) + weight[ids + 1]
        bags = nn.functional.embedding_bag(ids, weight, torch.tensor([0, 3]), mode="sum")
        return rows.square().sum() + bags.square().sum() + torch.mm(weight, weight.T).mean()


REFERRING = [Captured, Listed, Penalised, Fields, Helped, Subclassed, Directly]


@pytest.mark.parametrize("kind", REFERRING, ids=[kind.__name__ for kind in REFERRING])
def test_what_is_referred_to_from_anywhere_is_what_is_served(kind: type[Net]) -> None:
    assert_learns_as_alone(kind())


class Hooked(Net):
    """Hooks of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.table.register_forward_pre_hook(lambda module, args: (args[0].flip(0),))
        self.table.register_forward_hook(lambda module, args, rows: rows * self.out.weight)
        self.out.register_full_backward_hook(lambda module, into, outof: (into[0] * 0.5,))


class Frozen(Net):
    """A hook of a gradient that lets a parameter stay as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.out.weight.register_hook(lambda gradient: gradient * 0.0)


class FrozenRow(Net):
    """A hook of a table's gradient, which it gets as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table.weight.register_hook(lambda gradient: gradient * (torch.arange(9) != 4)[:, None])


class Clipped(Net):
    """A hook that runs after the gradient was accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.out.weight.register_post_accumulate_grad_hook(clip)


def clip(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.clamp_(-1e-2, 1e-2)


class Removing(Net):
    """A hook that forward removes by its handle."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = self.out.weight.register_hook(lambda gradient: gradient * 0.0)

    def more(self, ids: Tensor) -> Any:
        self.extra.remove()
        return 0.0


HOOKED = [Hooked, Frozen, FrozenRow, Clipped, Removing]


@pytest.mark.parametrize("kind", HOOKED, ids=[kind.__name__ for kind in HOOKED])
def test_hooks_run_as_in_torch_alone(kind: type[Net]) -> None:
    assert_learns_as_alone(kind())


def test_an_embedding_of_any_id_keeps_its_hooks_and_the_forward_of_its_class() -> None:
    class Doubled(psnb.torch.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return 2 * super().forward(ids)

    module = nn.Sequential(Doubled(3, 1.0))
    module[0].register_forward_hook(lambda module, args, rows: rows + 1)
    model = distributed(module, dense=None)
    with model.step():
        found = model(IDS)
        found.sum().backward()
    assert found.tolist() == [[3.0] * 3] * 4
    assert model.state_dict()["0.rows"].tolist() == [[1 - 2 * n * RATE] * 3 for n in (1, 2, 1)]


def test_all_rows_come_once_and_from_the_second_step_on_with_what_else_comes() -> None:
    strategy = InProcessStrategy()
    model = distributed(Penalised(), strategy)
    for expected in (5, 3):  # 3: one to read; prepared on both servers, then applied
        strategy.calls()
        with model.step():
            model(IDS).backward()
        assert strategy.calls() <= expected


def test_rows_that_are_only_looked_at_do_not_move() -> None:
    class Watched(Net):
        def more(self, ids: Tensor) -> Any:
            with torch.no_grad():
                self.extra = self.table.weight.norm()
            return 0.0

    model = distributed(Watched(), sparse=Adam(RATE))
    with model.step():
        model(torch.tensor([3])).backward()
    before = model.state_dict()["table.weight"]
    with model.step():
        model(torch.tensor([5])).backward()
    moved = (model.state_dict()["table.weight"] != before).any(1).nonzero().flatten().tolist()
    assert moved == [5]


def test_two_models_in_steps_of_one_thread_look_up_in_tables_of_their_own() -> None:
    first, second = (distributed(Listed(), sparse=SGD(0.0), dense=SGD(0.0)) for _ in range(2))
    expected = first.state_dict()["table.weight"].square().sum()
    with first.step(), second.step():
        found = first.module.decayed[0].square().sum()
        (found + second(IDS)).backward()
    torch.testing.assert_close(found, expected)


def test_attributes_of_parameters_travel_with_them() -> None:
    alone = Net()
    alone.table.weight.decays, alone.out.weight.decays = False, True  # type: ignore[attr-defined]
    model = distributed(alone)
    found = {name: vars(each).get("decays") for name, each in model.module.named_parameters()}
    assert found == {"table.weight": False, "out.weight": True, "out.bias": None}


WRITING: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda weight: weight.mul_(2.0),
    "a row": lambda weight: weight[0].zero_(),
    "an item": lambda weight: weight.__setitem__(0, 0.0),
    "data": lambda weight: weight.data.mul_(2.0),
    "other data": lambda weight: setattr(weight, "data", torch.zeros(9, 4)),
    "a hook": lambda weight: weight.register_hook(lambda gradient: gradient),
}


@pytest.mark.parametrize("write", WRITING.values(), ids=list(WRITING))
def test_a_table_that_forward_would_change_is_refused(write: Callable[[Tensor], Any]) -> None:
    class Writing(Net):
        def more(self, ids: Tensor) -> Any:
            with torch.no_grad():
                write(self.table.weight)
            return 0.0

    alone = Writing()
    model = distributed(alone)
    with (
        pytest.raises(ConfigurationError, match=r"'table\.weight', whose rows are on servers"),
        torch.no_grad(),
    ):
        model(IDS)
    with (
        pytest.raises(ConfigurationError, match=r"'table\.weight', whose rows are on servers"),
        model.step(),
    ):
        model(IDS).backward()
    assert_same(model, alone)


def test_the_gradient_of_a_whole_table_is_refused_with_where_those_of_rows_are() -> None:
    model = distributed(Net())
    with model.step():
        model.module.zero_grad()
        model(IDS).backward()
        with pytest.raises(ConfigurationError, match=r"'table\.weight' has no gradient as a whole"):
            nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_backward_into_given_parameters_goes_into_the_rows_of_tables() -> None:
    alone = Listed()
    model = distributed(alone)
    with model.step():
        model(IDS).backward(inputs=[model.module.table.weight, model.module.out.weight])
    alone(IDS).backward(inputs=[alone.table.weight, alone.out.weight])
    torch.optim.SGD([alone.table.weight, alone.out.weight], RATE).step()
    assert_same(model, alone)


def test_gradients_with_respect_to_a_table_are_refused() -> None:
    model = distributed(Listed())
    with model.step():
        loss = model(IDS)
        with pytest.raises(
            ConfigurationError, match=r"torch\.autograd\.grad with respect to the w"
        ):
            torch.autograd.grad(loss, [model.module.table.weight], allow_unused=True)
        loss.backward()


def test_the_rows_of_a_table_are_refused_outside_of_a_step() -> None:
    model = distributed(Listed())
    with pytest.raises(ConfigurationError, match=r"'table\.weight', was called by itself"):
        model.module.more(IDS)


def optimizing(net: Net) -> Any:
    return {"all": torch.optim.Adam(net.parameters())}


def showing_an_array(net: Net) -> Any:
    return net.out.weight.detach().numpy()


def showing_a_table(net: Net) -> Any:
    return lambda: net.table.weight.data.sum()


def shown_table(net: Net) -> Any:
    shown = net.table.weight.data
    return lambda: shown.sum()


def shown_part(net: Net) -> Any:
    return [net.out.weight.data, net.out.weight.detach()[:, 1:3]]


def scripted(net: Net) -> Any:
    return torch.jit.script(clamped)


def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1, 1)


def computed(net: Net) -> Any:
    return [net.out.weight * 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (scripted, r"clamped, a function of TorchScript, .*: use the function that it was made of"),
        (computed, r"a tensor that was computed of parameters, .*: compute it in forward"),
        (optimizing, r"a torch\.optim\.Adam of parameter 'table\.weight'.*give psnb"),
        (showing_an_array, r"an array that shows the memory of parameter 'out\.weight'"),
        (shown_table, r"a tensor that shows the memory of parameter 'table\.weight'"),
        (shown_part, r"a tensor that shows the memory of parameter 'out\.weight'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_cannot_be_followed_is_refused_by_name(make: Any, message: str) -> None:
    net, strategy = Net(), InProcessStrategy()
    net.out.extra = make(net)  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=rf"^'out\.extra' of Net holds {message}"):
        distributed(net, strategy)
    assert not strategy.parameters


def test_a_function_that_shows_a_table_only_when_it_is_called_is_no_view_of_it() -> None:
    net = Net()
    net.extra = showing_a_table(net)
    model = distributed(net)
    with model.step(), torch.no_grad():
        model(IDS)
        torch.testing.assert_close(model.module.extra(), net.table.weight.detach().sum())


def test_a_parameter_with_the_memory_of_another_one_is_refused() -> None:
    net = Net()
    net.out.weight = nn.Parameter(net.table.weight.data[:1])
    with pytest.raises(
        ConfigurationError, match=r"shows the memory of '.*\.weight': servers would keep both"
    ):
        distributed(net)


KEPT = Net()


def test_a_class_or_function_that_uses_the_module_as_a_global_is_refused() -> None:
    class Global(Net):
        def more(self, ids: Tensor) -> Any:
            return KEPT.out(ids)

    net = nn.Sequential(KEPT, Global())
    with pytest.raises(ConfigurationError, match=r"Global\.more, .* global .KEPT., .*module .0."):
        distributed(net)
    holder = nn.Sequential(KEPT)
    holder.extra = globally  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"^'extra' of Sequential holds globally, a funct"):
        distributed(holder)


def globally() -> Any:
    return KEPT.out.weight.sum()


def test_a_class_that_holds_the_module_is_refused() -> None:
    class Singleton(Net):
        held: Any = None

    net = Singleton()
    Singleton.held = net
    with pytest.raises(ConfigurationError, match=r"a class of the module.*refers to the module"):
        distributed(net)


def test_hooks_of_all_modules_are_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        with pytest.raises(ConfigurationError, match="hooks for all modules of this process"):
            distributed(Net())
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_of_torchscript_is_refused() -> None:
    scripted = torch.jit.trace(nn.Linear(2, 1), torch.ones(1, 2))
    with pytest.raises(ConfigurationError, match=r"'0' is of TorchScript"):
        distributed(nn.Sequential(scripted))


def test_the_module_stays_as_it_is() -> None:
    net = Listed()
    before = copy.deepcopy(net.state_dict())
    model = distributed(net)
    with model.step():
        model(IDS).backward()
    assert type(net.table.weight) is nn.Parameter
    assert net.decayed[0] is net.table.weight
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


class Both:
    """Keeps a module and its distributed model, as trainers do."""

    def __init__(self) -> None:
        self.net = Listed()
        self.model = distributed(self.net)
        self.served = self.model.module


USES: dict[str, Callable[[Both], Any]] = {
    "an attribute": lambda both: both.net.decayed,
    "a call": lambda both: both.net(IDS),
    "model.module": lambda both: both.served.out,
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_what_a_closure_has_captured_of_the_module_itself_is_refused_where_it_is_used(
    use: Callable[[Both], Any],
) -> None:
    there: Both = loads(dumps(Both(), "it"))
    with pytest.raises(ConfigurationError, match=r"a closure uses the module itself .* model\.mod"):
        use(there)


def test_what_a_closure_has_captured_of_parameters_is_refused_where_it_is_used() -> None:
    net = Listed()
    distributed(net)
    weight = loads(dumps([net.out.weight], "it"))[0]
    for use in (lambda: 2 * weight, lambda: weight.sum(), lambda: torch.stack([weight])):
        with pytest.raises(ConfigurationError, match=r"a closure uses parameter 'out\.weight'"):
            use()


def test_a_copy_of_the_module_travels_with_its_values() -> None:
    net = Net()
    distributed(net)
    before = loads(dumps(copy.deepcopy(net), "it"))
    assert torch.equal(before.out.weight, net.out.weight)
