"""Takeover: the notebook dies between any two messages, and another one takes its strategy over.

Meanwhile shards move. What the first has left must be finished or given up by all shards alike.
"""

from __future__ import annotations

from random import Random
from typing import Any

from psnb._src.client.commit import ask, recover_orphans
from psnb._src.server.operations import EndRound
from psnb.errors import ServerUnresponsiveError
from tests.model.halves import assert_whole, primaries
from tests.model.notebook import Notebook
from tests.model.world import Process

_LATER = 300
"""Steps in which what was under way arrives, or most of it."""


class Takeover:
    """The death of a notebook, what happens until another one is there, and what must hold then.

    Parameters
    ----------
    seed : int
        Of its own chance.
    notebook : Notebook
        What dies; its reconciler lives on, as the other one has one, too.
    """

    def __init__(self, seed: int, notebook: Notebook) -> None:
        self._random, self._notebook = Random(seed), notebook
        # Whether it dies when it has sent the end of a round, and another one comes at once: what
        # the first has sent may arrive later than what that one asks.
        self._at_once = seed % 4 == 3

    def due(self) -> bool:
        """Return whether it dies now: mostly while shards end a round, or some of them have."""
        notebook = self._notebook
        if notebook.recovering or notebook.unmade or notebook.frozen:
            return False
        chance = 0.3 if self._halfway() else 0.03 if self._round() is not None else 0.0003
        if self._at_once and self._sent():
            chance = 1.0
        return self._random.random() < chance

    def run(self) -> None:
        """Die, let shards move, take over; assert that nothing is done by halves."""
        world, notebook = self._notebook.world, self._notebook
        world.counts["rounds left halfway" if self._halfway() else "notebooks died"] += 1
        later = self._halfway() and not self._at_once
        steps = self._random.choice([300, 1000] if later else [0, 10, 100])
        notebook.die(self._random)
        self._go_on(steps)
        world.faults = False
        for server in world.servers.values():
            server.wake()
        found: list[Any] = []
        owner = Process(world, "another notebook")
        while not found:
            world.drive(owner, recover_orphans(notebook.shards, ask), found.append)
            while not found:
                self._go_on(1)
            if isinstance(found[0], ServerUnresponsiveError):
                found.clear()
        assert found[0] or not notebook.half, "nothing says that tables were being loaded"
        world.counts["takeovers"] += 1
        self._go_on(_LATER)
        assert_whole(notebook)

    def _round(self) -> int | None:
        """Return the round of which the end is begun, and not heard of."""
        return next((n for n in self._notebook.ending if n not in self._notebook.rounds), None)

    def _sent(self) -> bool:
        """Whether the end of a round is under way."""
        return any(
            isinstance(each.request.operation, EndRound) and not each.done
            for each in self._notebook.world.pending
        )

    def _halfway(self) -> bool:
        number = self._round()
        if number is None:
            return False
        ends = [host._hosted[i].shard.ended for i, host in primaries(self._notebook).items()]
        ended = [each is not None and each.number == number for each in ends]
        return any(ended) and not all(ended)

    def _go_on(self, steps: int) -> None:
        world, notebook = self._notebook.world, self._notebook
        for _ in range(steps):
            if world.faults and self._random.random() < 0.04:
                notebook.rearrange()
            if self._random.random() < 0.2:
                notebook.round()
            world.step()
