"""What a notebook shows of a strategy."""

from __future__ import annotations

import numpy as np

from psnb._src.monitor.statistics import ServerStatistics
from psnb._src.strategy.tables import describe
from psnb._src.utils.text import counted
from tests.client.in_process import DIM, embedding, variable
from tests.monitor.test_summary import HOSTILE, Reader


def test_servers_and_parameters_are_shown_and_escaped() -> None:
    server = ServerStatistics(HOSTILE, "tcp://host:1", "ready", 3)
    parameters = {HOSTILE: variable(np.ones((5, 2), np.float32)), "ids": embedding(None)}
    read = Reader(describe("the title", [server], parameters))
    assert "img" not in read.elements
    for reported in (
        "the title",
        "tcp://host:1",
        "variable",
        "(5, 2)",
        f"any id of {DIM}",
        "float32",
    ):
        assert reported in read.text
    assert read.text.count(HOSTILE) == 2


def test_the_singular_is_used_for_one() -> None:
    assert [counted(count, "server") for count in (0, 1, 1200)] == [
        "0 servers",
        "1 server",
        "1,200 servers",
    ]


def test_a_strategy_without_parameters_has_no_table_of_them() -> None:
    assert "<table" not in describe("the title", [], {})
