"""Moving partitions between stores, of which some lose what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from psnb._src.data.memory.memory import Memory, StoreContents
from psnb._src.data.memory.stores import Call, Stores, by_owner
from psnb.errors import InternalError, WorkerLostError
from tests.data.memory.test_memory import COUNT, LAYOUT, PARTITIONS, Post, held, memory


class InOneProcess(Stores):
    """Several stores under one hand; before each call something may happen."""

    def __init__(self, folder: Path, names: str) -> None:
        super().__init__()
        self._folder, self.post = folder, Post()
        self.memories: dict[str, Memory] = {}
        self.before: Callable[[str], None] = lambda method: None
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        """Begin with an empty store, as a process that was started again."""
        self.memories[name] = memory(self._folder, address=name, post=self.post)

    def names(self) -> list[str]:
        return sorted(self.memories)

    def ask(self, calls: Iterable[Call]) -> list[StoreContents]:
        return [each for _, each in self._run(calls)]

    def try_to_ask(self, calls: Iterable[Call]) -> dict[str, StoreContents]:
        return dict(self._run(calls))

    def _run(self, calls: Iterable[Call]) -> list[tuple[str, StoreContents]]:
        found = []
        for name, method, arguments in calls:
            self.before(method.__name__)
            found.append((name, method(self.memories[name], *arguments)))
        return found


@pytest.fixture
def stores(tmp_path: Path) -> InOneProcess:
    made = InOneProcess(tmp_path, "ab")
    for number in range(PARTITIONS):
        made.memories["ab"[number % 2]].load(1, number)
    return made


def shuffle(stores: InOneProcess) -> None:
    owners = stores.restore(1, LAYOUT)
    stores.move(1, owners, 2, LAYOUT.shuffled(3), stores.spread(PARTITIONS))


def test_a_shuffle_moves_each_example_to_one_place(stores: InOneProcess) -> None:
    shuffle(stores)
    layout = LAYOUT.shuffled(3)
    owners = stores.restore(2, layout)
    assert by_owner(owners) == {"a": [0, 2], "b": [1, 3]}
    found = [
        n for number, name in owners.items() for n in held(stores.memories[name], 2, layout, number)
    ]
    assert sorted(found) == list(range(COUNT))
    assert stores.post.settled == PARTITIONS


def test_what_a_store_has_lost_is_made_again_by_those_that_have_least(stores: InOneProcess) -> None:
    stores.start("b")
    assert by_owner(stores.restore(1, LAYOUT)) == {"a": [0, 2, 3], "b": [1]}
    assert sum(each.held.examples for each in stores.contents.values()) == COUNT


def test_stores_that_lose_everything_time_and_again_are_given_up(stores: InOneProcess) -> None:
    def lose(method: str) -> None:
        if method == "survey":
            stores.start("b")

    stores.before = lose
    with pytest.raises(WorkerLostError, match="partitions of the dataset could not be made again"):
        stores.restore(1, LAYOUT)
    stores.memories.clear()
    with pytest.raises(WorkerLostError, match="no worker is there"):
        stores.restore(1, LAYOUT)


@pytest.mark.parametrize("step", ["scatter", "survey"])
def test_a_store_that_is_lost_in_a_shuffle_is_noticed(stores: InOneProcess, step: str) -> None:
    owners = stores.restore(1, LAYOUT)

    def lose(method: str) -> None:
        if method == step:
            stores.start("b")

    stores.before = lose
    with pytest.raises(WorkerLostError, match="was started again"):
        stores.move(1, owners, 2, LAYOUT.shuffled(3), owners)


def test_a_message_that_is_lost_is_noticed(stores: InOneProcess) -> None:
    stores.post.receivers["b"] = lambda data: None
    with pytest.raises(InternalError, match="of 400 examples that were sent"):
        shuffle(stores)
