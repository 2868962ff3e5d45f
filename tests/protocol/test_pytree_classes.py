"""Classes of a notebook that are nodes of JAX's trees, in the notebook and where they arrive."""

from __future__ import annotations

import dataclasses
import io
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from jax._src.tree_util import _registry

from psnb._src.protocol.packing import dumps, loads
from psnb._src.protocol.pytree_classes import with_registration

ONE, TWO = jnp.ones(2), jnp.full(3, 2.0)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return a context in which cloudpickle knows no class, as in another process."""
    tracker = cloudpickle.cloudpickle
    names = "_DYNAMIC_CLASS_TRACKER_BY_ID", "_DYNAMIC_CLASS_TRACKER_BY_CLASS"
    others = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()

    @contextmanager
    def there() -> Iterator[None]:
        with monkeypatch.context() as patched:
            for name, other in zip(names, others, strict=True):
                patched.setattr(tracker, name, other)
            yield

    return there


def node() -> Any:
    class Node:
        def __init__(self, one: Any, two: Any, name: str) -> None:
            self.one, self.two, self.name = one, two, name

    tree_util.register_pytree_node(
        Node, lambda e: ((e.one, e.two), e.name), lambda name, e: Node(*e, name)
    )
    return Node(ONE, {"in": TWO}, "a name")


def keyed() -> Any:
    class Keyed:
        def __init__(self, one: Any) -> None:
            self.one = one

    tree_util.register_pytree_with_keys(
        Keyed, lambda e: (((tree_util.GetAttrKey("one"), e.one),), None), lambda _, e: Keyed(*e)
    )
    return Keyed(ONE)


def node_class() -> Any:
    @tree_util.register_pytree_node_class
    class Node:
        def __init__(self, one: Any, name: str) -> None:
            self.one, self.name = one, name

        def tree_flatten(self) -> Any:
            return (self.one,), self.name

        @classmethod
        def tree_unflatten(cls, name: str, children: Any) -> Any:
            return cls(*children, name)

    return Node(ONE, "a name")


def keyed_class() -> Any:
    @tree_util.register_pytree_with_keys_class
    class Keyed:
        def __init__(self, one: Any) -> None:
            self.one = one

        def tree_flatten_with_keys(self) -> Any:
            return ((tree_util.GetAttrKey("one"), self.one),), None

        @classmethod
        def tree_unflatten(cls, _: None, children: Any) -> Any:
            return cls(*children)

    return Keyed(ONE)


def registered_dataclass() -> Any:
    @dataclasses.dataclass
    class Line:
        slope: Any
        name: str
        drawn: bool = True

    tree_util.register_dataclass(Line, ["slope"], ["name"], ["drawn"])
    return Line(ONE, "a name")


def static() -> Any:
    @tree_util.register_static
    class Name(str):
        pass

    return {Name("it"): 1, "name": Name("a name")}["name"]


def flax_dataclass() -> Any:
    struct = pytest.importorskip("flax.struct")

    @struct.dataclass
    class State:
        one: Any
        inner: Any = None
        name: str = struct.field(pytree_node=False, default="a name")

    return State(ONE, State(TWO, name="inner"))


def flax_node() -> Any:
    struct = pytest.importorskip("flax.struct")

    class State(struct.PyTreeNode):  # type: ignore[misc,name-defined]
        one: Any
        name: str = struct.field(pytree_node=False, default="a name")

    return State(ONE, name="other")


def equinox_module() -> Any:
    equinox = pytest.importorskip("equinox")

    class Base(equinox.Module):  # type: ignore[misc,name-defined]
        kind: ClassVar[str] = "base"
        one: Any
        scale: float = equinox.field(static=True, default=2.0)

        def total(self) -> Any:
            return self.scale * self.one.sum()

    class Net(Base):
        last: equinox.nn.Linear
        twos: Any = equinox.field(converter=jnp.asarray)

        def __init__(self, key: Any, scale: float = 3.0) -> None:
            self.one, self.scale, self.last = ONE, scale, equinox.nn.Linear(2, 1, key=key)
            self.twos = [2.0, 2.0]

        def __call__(self, x: Any) -> Any:
            return super().total() + self.last(x) + self.twos.sum()

    net = Net(jax.random.key(0))
    assert Net.kind == "base"
    assert net(ONE).shape == (1,)
    return {"net": net, "base": Base(TWO)}


KINDS = (
    *(node, keyed, node_class, keyed_class, registered_dataclass, static),
    *(flax_dataclass, flax_node, equinox_module),
)


def to_config(tree: Any) -> list[tuple[str, list[float]]]:
    found = tree_util.tree_flatten_with_path(tree)[0]
    return [(tree_util.keystr(path), np.asarray(leaf).tolist()) for path, leaf in found]


@pytest.mark.parametrize("made", KINDS)
def test_it_is_the_same_tree_elsewhere(made: Callable[[], Any], elsewhere: Any) -> None:
    tree = made()
    packed = dumps(tree, "it")
    with elsewhere():
        arrived = loads(packed)
    assert to_config(arrived) == to_config(tree)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, arrived)
    assert type(doubled) is type(arrived)
    assert str(jax.tree.structure(doubled)) == str(jax.tree.structure(tree))
    assert jax.tree.structure(arrived) == jax.tree.structure(doubled)


def test_a_module_of_equinox_computes_and_is_made_elsewhere(elsewhere: Any) -> None:
    tree = equinox_module()
    packed = dumps(tree, "it")
    with elsewhere():
        arrived = loads(packed)
    net, base = arrived["net"], arrived["base"]
    np.testing.assert_array_equal(net(ONE), tree["net"](ONE))
    assert type(net).kind == "base"
    made = type(net)(jax.random.key(0), 5.0)
    assert to_config(made) == to_config(tree["net"])
    assert made.scale == 5.0
    assert type(base)(ONE).scale == 2.0
    with pytest.raises(AttributeError):  # frozen, as in the notebook
        made.one = TWO


def test_a_node_of_flax_is_made_and_replaced_elsewhere(elsewhere: Any) -> None:
    packed = dumps(flax_node(), "it")
    with elsewhere():
        arrived = loads(packed)
    assert arrived.replace(one=TWO).name == "other"
    assert type(arrived)(TWO).name == "a name"


def test_fields_of_a_dataclass_are_no_attributes_of_its_class_elsewhere(elsewhere: Any) -> None:
    tree = registered_dataclass()
    packed = dumps(tree, "it")
    with elsewhere():
        kind = type(loads(packed))
    assert {*vars(kind)} - {"__weakref__"} == {*vars(type(tree))} - {"__weakref__"}


def test_a_class_is_registered_once_however_often_it_arrives(elsewhere: Any) -> None:
    packed = dumps([flax_node(), equinox_module(), node()], "it")
    with elsewhere():
        first = loads(packed)
        known = len(_registry)
        second = loads(packed)
    assert [type(each) for each in first] == [type(each) for each in second]
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert len(_registry) == known


def test_a_class_that_is_defined_again_is_another_one(elsewhere: Any) -> None:
    old, new = dumps(flax_node(), "it"), dumps(flax_node(), "it")
    with elsewhere():
        first, second = loads(old), loads(new)
    assert type(first) is not type(second)
    assert to_config(first) == to_config(second)


def test_what_comes_back_has_the_class_of_the_notebook(elsewhere: Any) -> None:
    tree = flax_dataclass()
    packed = dumps(tree, "it")
    with elsewhere():
        packed = dumps(jax.tree.map(lambda leaf: 2 * leaf, loads(packed)), "it")
    back = loads(packed)
    assert type(back) is type(tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)


def test_other_classes_travel_as_they_did() -> None:
    class Plain:
        pass

    reduced = cloudpickle.Pickler(io.BytesIO()).reducer_override(Plain)
    assert with_registration(Plain, reduced) is reduced
