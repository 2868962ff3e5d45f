"""Model: parameters over all servers, and closures that write to them by chance."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import psnb
from tests.soak.ledger import PAIRS, Found, Written

_PAIRS_OF_A_CLOSURE = 6
_AMOUNTS = 10

_BOUND, _MORE = 400, 2_000
"""How many rows a table may have, and how many ids are pushed to it."""


class DeliberateError(Exception):
    """What some closures raise after they have written."""


class Model:
    """Accounts on several servers between which each attempt moves another amount.

    The era is in a file, which attempts read when they begin: beside psnb, so that it tells the
    truth whatever psnb does.
    """

    def __init__(
        self,
        coordinator: psnb.ClusterCoordinator,
        era: Path,
        rng: np.random.Generator,
        mode: psnb.Mode,
    ) -> None:
        strategy = coordinator.strategy
        self._era = era
        self.begin_era(0)
        self._accounts = [strategy.variable(np.float64(0), f"account {i}") for i in range(2)]
        self._counters = [strategy.variable(np.int64(0), f"counter {i}") for i in range(2)]
        self._poison = strategy.variable(np.int64(0), "poison")
        plain: Any = {"initializer": 0.0, "optimizer": psnb.SGD(1.0)}
        places = rng.choice(["memory", "disk"], 2)
        self._rows = strategy.embedding("rows", 2, storage=str(places[0]), **plain)
        # Each is one or nothing, which half width has exactly; but not the thirds of Geo.
        widths = ["float32"] if isinstance(mode, psnb.Geo) else ["float32", "bfloat16", "float16"]
        width = str(rng.choice(widths))
        self._numbers = strategy.embedding(
            "numbers", 1, dtype=width, storage=str(places[1]), **plain
        )
        self._bounded = strategy.embedding(
            *("bounded", 2),
            **plain,
            storage=str(rng.choice(["memory", "disk"])),
            max_rows=_BOUND,
            evict=str(rng.choice(["lru", "lfu"])),
            time_to_live=[None, 300][rng.integers(2)],
        )
        self._whole = isinstance(mode, psnb.Async)  # others push parts of gradients
        self._iterator = iter(coordinator.create_per_worker_dataset(_numbers))
        self.move = self._closure()

    def begin_era(self, number: int) -> None:
        """Have all attempts that begin from now on be of another era."""
        new = self._era.with_suffix(".new")
        new.write_text(str(number))
        new.replace(self._era)

    def arguments(self, fails: bool) -> tuple[Any, ...]:
        """Return what `move` takes."""
        return self._iterator, fails

    def found(self, numbers: list[int]) -> Found:
        """Read all of it; only these numbers."""
        one, other = (float(account.read()) for account in self._accounts)
        first, second = (int(counter.read()) for counter in self._counters)
        rows = self._rows.lookup(np.arange(2 * PAIRS), training=False)
        assert (rows[:, 0] == rows[:, 1]).all(), "a row is torn"
        there = self._numbers.lookup(np.array(numbers, np.int64), training=False)
        self._check_bounded()
        poison = int(self._poison.read())
        return Found((one, other), (first, second), poison, rows[:, 0], there[:, 0])

    def _check_bounded(self) -> None:
        """Raise unless each row is what was pushed to its own id, some times, and all are few."""
        ids = np.arange(_MORE)
        times, found = self._bounded.lookup(ids, training=False).T.astype(np.float64)
        assert np.allclose(found, times * (ids + 1), rtol=1e-4), "a row has another id's updates"
        if self._whole:
            assert (times == times.round()).all(), "a part of an update was applied"
        count = self._bounded.statistics().rows
        assert count <= _BOUND, f"{count} rows where {_BOUND} may be"

    def _closure(self) -> Callable[[Iterator[int], bool], Written]:
        accounts, counters, poison = self._accounts, self._counters, self._poison
        rows, numbers, era = self._rows, self._numbers, self._era
        bounded = self._bounded

        def move(iterator: Iterator[int], fails: bool) -> Written:
            begun_in = int(era.read_text())
            rng = np.random.default_rng()  # of no seed: no two attempts are the same
            pairs = rng.choice(PAIRS, _PAIRS_OF_A_CLOSURE, replace=False)
            ids = np.stack([2 * pairs, 2 * pairs + 1], 1).ravel()
            # What is read changes all the time, so a second attempt writes something else.
            seen = int(abs(accounts[0].read())) + int(abs(rows.lookup(ids)).sum())
            amount = int(rng.integers(1, _AMOUNTS)) + seen % _AMOUNTS
            number = next(iterator)
            accounts[0].assign_add(np.float64(amount))
            accounts[1].assign_sub(np.float64(amount))
            for counter in counters:
                counter.assign_add(np.int64(1))
            signs = np.tile([-1, 1], len(pairs)).astype(np.float32)
            rows.push(ids, np.tile((amount * signs)[:, None], 2))
            numbers.push([number], -np.ones((1, 1), np.float32))
            some = rng.choice(_MORE, _PAIRS_OF_A_CLOSURE, replace=False)
            bounded.lookup(some)
            bounded.push(some, -np.stack([np.ones(some.size), some + 1], 1).astype(np.float32))
            if fails:
                poison.assign_add(np.int64(1))
                raise DeliberateError("raised on purpose")
            return Written(begun_in, amount, pairs.tolist(), number)

        return move


def _numbers() -> Iterator[int]:
    """Return numbers that nobody else has."""
    return itertools.count(int.from_bytes(os.urandom(7), "big"))
