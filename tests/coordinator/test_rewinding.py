"""What others find of tables while these go back: all of it, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psnb._src.client.variable import Variable
from psnb._src.coordinator.rewinding import _load
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import ReadValues, on_table
from psnb.errors import ConfigurationError, ServerLostError
from tests.client.in_process import InProcess, variable

LOST = ServerLostError("a server was killed")


class Notebook:
    """A variable on two servers, and loads of it, of which a number fails."""

    def __init__(self, fails: int, *, served: bool = True) -> None:
        self.servers = InProcess(2)
        self.v: Variable = variable(np.zeros(4), 2, transport=self.servers)
        self._fails, self._served = fails, served
        self.waited: list[bool] = []
        losses = SimpleNamespace(beginning=lambda: "recover")
        self.strategy = SimpleNamespace(
            server_client=self.servers,
            shards=self.servers.shards,
            settled=self._settled,
            losses=losses,
        )

    def rewind(self) -> None:
        core: Any = SimpleNamespace(strategy=self.strategy)
        _load(core, self._begin)

    def _settled(self) -> bool:
        self.waited += [each.waits(READ) for each in self._shards()]
        return self._served

    def _shards(self) -> Iterator[ParameterShard]:
        for host in self.servers._hosts:
            for hosted in host._hosted.values():
                yield hosted.shard

    def _begin(self) -> Iterator[None]:
        yield
        self.waited += [each.waits(READ) for each in self._shards()]
        if self._fails:
            self._fails -= 1
            raise LOST


READ = on_table("v", ReadValues())


def test_what_others_read_waits_until_all_is_loaded() -> None:
    notebook = Notebook(fails=0)
    notebook.rewind()
    assert notebook.waited == [True] * 2
    assert notebook.v.read().tolist() == [0.0] * 4


def test_it_waits_while_replicas_take_over_and_all_is_loaded_again() -> None:
    notebook = Notebook(fails=1)
    notebook.rewind()
    assert notebook.waited == [True] * 6
    assert notebook.v.read().tolist() == [0.0] * 4


def test_it_finds_nothing_of_what_was_not_loaded_wholly() -> None:
    notebook = Notebook(fails=1, served=False)
    with pytest.raises(ServerLostError) as caught:
        notebook.rewind()
    assert "all of them were dropped" in caught.value.__notes__[0]
    with pytest.raises(ConfigurationError, match="it was dropped"):
        notebook.v.read()
