"""What is told about the memory of servers is what the system says."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

import psnb
from tests.integration.helpers import address_of, pid_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc"),
]

DIM = 32
ROW_BYTES = 2 * 4 * DIM  # values and Adagrad's accumulator
ROWS = 200_000_000 // ROW_BYTES
BATCH = 50_000


@pytest.fixture(scope="module")
def alone() -> Iterator[Client]:
    """A cluster with one server."""
    with psnb.local_cluster(workers=1, servers=1) as client:
        yield client


@pytest.fixture
def resident(alone: Client) -> Callable[[], int]:
    """Return what tells the bytes that the server's process alone has, without free ones."""
    process, address = psutil.Process(pid_of(alone, "server-0")), address_of(alone, "server-0")

    def give_back() -> None:  # to the system what malloc keeps for later
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)

    def ask() -> int:
        alone.run(give_back, workers=[address])
        bytes_: int = process.memory_full_info().uss
        return bytes_

    return ask


def told(strategy: psnb.ParameterServerStrategy, name: str) -> int:
    return sum(tables[name] for tables in strategy.memory().values())


def used(strategy: psnb.ParameterServerStrategy) -> None:
    """Use a table of each kind, for what a process needs only once."""
    for name, rows in (("fixed", 10), ("growing", None)):
        e = strategy.embedding(f"used {name}", DIM, rows, optimizer=psnb.Adagrad(0.1))
        e.lookup([1])
        e.push([1], np.ones((1, DIM), np.float32))


def test_a_fixed_table_takes_the_estimated_memory(
    alone: Client, resident: Callable[[], int]
) -> None:
    with psnb.ParameterServerStrategy(alone) as strategy:
        used(strategy)
        before = resident()
        strategy.embedding("e", DIM, ROWS, optimizer=psnb.Adagrad(0.1))
        assert resident() - before == pytest.approx(told(strategy, "e"), rel=0.15)


@pytest.mark.second_tier(
    "fills 200 MB; tests/server/tables/test_growing_array and test_row_index have the parts"
)
def test_a_growing_table_takes_the_estimated_memory_and_32_bytes_an_id_for_its_index(
    alone: Client, resident: Callable[[], int]
) -> None:
    with psnb.ParameterServerStrategy(alone) as strategy:
        used(strategy)
        before = resident()
        e = strategy.embedding("e", DIM, optimizer=psnb.Adagrad(0.1))
        ids = np.random.default_rng(0).integers(0, 2**64, ROWS, np.uint64)
        for start in range(0, ROWS, BATCH):
            e.lookup(ids[start : start + BATCH])
            statistics = e.statistics()
            assert statistics.index_nbytes <= 32 * statistics.rows
            # What is far below the size of a page of the system's, or of a batch, tells nothing.
            if statistics.nbytes > 100_000_000:
                assert statistics.nbytes == told(strategy, "e")
                assert resident() - before == pytest.approx(statistics.nbytes, rel=0.15)
        assert statistics.rows == ROWS


@pytest.mark.second_tier(
    "fills 200 MB; tests/server/tables/test_growing_array has what grows in its place"
)
def test_growing_takes_no_more_than_the_table_once_more(
    alone: Client, resident: Callable[[], int]
) -> None:
    status = Path(f"/proc/{pid_of(alone, 'server-0')}/status")

    def kib(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", status.read_text())[1])  # type: ignore[index]

    with psnb.ParameterServerStrategy(alone) as strategy:
        used(strategy)
        e = strategy.embedding("e", DIM, optimizer=psnb.Adagrad(0.1))
        for start in range(0, ROWS, BATCH):
            resident()
            before, table = kib("VmRSS") * 1024, told(strategy, "e")
            status.with_name("clear_refs").write_text("5")  # forget the peak
            e.lookup(range(start, start + BATCH))
            batch = 2 * BATCH * DIM * 4  # the answer, and its copy on the way
            assert kib("VmHWM") * 1024 - before <= table + 2 * batch + BATCH * ROW_BYTES
