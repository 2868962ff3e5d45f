"""Tests of saves in which servers end that still have to write, without Dask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psnb._src.checkpoint.manager import FolderManager
from psnb.errors import ServerLostError
from tests.checkpoint.fakes import Strategy
from tests.checkpoint.saved import manifest_of, names


@pytest.fixture
def strategy() -> Strategy:
    return Strategy()


def lose(strategy: Strategy, times: int) -> None:
    """Have a server end in so many saves, while it writes, and parameters change meanwhile."""
    left = iter(range(times))

    def end() -> None:
        strategy.assign(1 + strategy.values[0])
        if next(left, None) is not None:
            raise ServerLostError("it has ended")

    strategy.made["b"].when_saved = end


def test_where_others_have_the_shards_all_is_saved_as_of_a_later_moment(
    strategy: Strategy, tmp_path: Path
) -> None:
    moments = []

    @contextmanager
    def held(timeout: float | None) -> Iterator[None]:
        moments.append(strategy.values[0])
        yield

    manager = FolderManager(strategy, tmp_path, 3, barrier=held, state=lambda: {"at": moments[-1]})
    lose(strategy, 2)
    strategy.settles = lambda: True
    path = manager.save()
    assert moments == [0, 1, 2]
    assert manifest_of(path).metadata == {"at": 2}
    assert manager.checkpoints == [path]
    assert [taken.released for taken in strategy.taken] == 3 * [True]
    manager.restore(path)
    assert strategy.values == [2, 2, 2]


def test_where_no_other_has_them_nothing_is_saved(strategy: Strategy, tmp_path: Path) -> None:
    manager = FolderManager(strategy, tmp_path, 3)
    lose(strategy, 1)
    with pytest.raises(ServerLostError, match="it has ended"):
        manager.save()
    assert len(strategy.taken) == 1
    assert names(tmp_path) == []


def test_a_save_in_which_a_server_ends_each_time_fails(strategy: Strategy, tmp_path: Path) -> None:
    manager = FolderManager(strategy, tmp_path, 3)
    lose(strategy, 100)
    strategy.settles = lambda: True
    with pytest.raises(ServerLostError, match="it has ended"):
        manager.save()
    assert len(strategy.taken) == 5
    assert names(tmp_path) == []
