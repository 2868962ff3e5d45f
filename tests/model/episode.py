"""Episode: a while of chance, then peace, then what must hold."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Generator, Sequence
from random import Random

import numpy as np

from psnb._src.coordinator.closures.remote_value import ClosureStatus, StepValues
from psnb._src.coordinator.scheduling.work import Work
from psnb._src.protocol.messages import AskLease
from psnb._src.server.operations import EndWriter
from psnb._src.server.server import Host
from psnb.errors import PsnbError, ServerUnresponsiveError
from tests.coordinator.queues import commit_of
from tests.model.direct import WRITER, Direct
from tests.model.halves import assert_whole, contents
from tests.model.marks import Marks, NotebookDiedError, content
from tests.model.notebook import Notebook
from tests.model.reading import Element
from tests.model.reconciler import ROOM, TABLE
from tests.model.rows import assert_same, table_of
from tests.model.takeover import Takeover
from tests.model.workers import code
from tests.model.world import Server, World

MODES = ("async", "sync", "geo")

STEPS = 1500
"""Of an episode, until it is left in peace."""

_LOOKED = 0.2
"""How often it is looked at what reads would see, of the steps after which nothing runs."""

_HURT = 0.005
"""How often a server is hurt while tables are loaded, beside all else."""

_PEACE = 60_000
"""Steps after the last fault within which everything has come to an end."""


class Episode:
    """A world, and what happens to it.

    Parameters
    ----------
    seed : int
        Of all chance.
    mode : str
        One of `MODES`.
    replicas : int
        How many copies.
    careful : bool
        Whether a server is killed only if nothing can be lost by it.
    cancels : bool
        Whether closures are cancelled.
    tells : bool
        Whether shards are told now and then what they may forget.
    dies : bool
        Whether the notebook may die, and another one takes over.
    long : bool
        Whether closures may have several steps.
    reads : bool
        Whether steps take from a leased dataset.
    rows : bool
        Whether steps push to a table with a bound, too.
    waits : bool
        Whether users and saves wait now and then until nothing runs.
    marks : bool
        Whether parameters go back to marks, now and then.
    """

    def __init__(
        self,
        seed: int,
        *,
        mode: str,
        replicas: int,
        careful: bool,
        cancels: bool = False,
        tells: bool = False,
        dies: bool = False,
        long: bool = False,
        reads: bool = False,
        rows: bool = False,
        waits: bool = False,
        marks: bool = False,
    ) -> None:
        self.world = world = World(seed)
        chance = Random(seed)
        splits = [chance.randint(0, 9) for _ in range(chance.choice((5, 15, 40)))] if reads else []
        how = {"rows": rows, "marks": marks, "in_order": long or reads}
        self.notebook = Notebook(world, mode, 3, 4, replicas, 3, splits, **how)
        self._mode, self._careful = mode, careful
        self._cancels = Random(seed) if cancels else None  # its own: old seeds stay what they were
        self._tells = Random(seed) if tells else None
        self._reads = Random(seed) if reads else None
        self._long = Random(seed) if long else None
        self._waits = Random(seed) if waits else None
        self._waiting: Generator[None] | None = None
        self._marks = Marks(seed, self.notebook, self._step) if marks else None
        if marks:
            self.notebook.direct = Direct(seed, self.notebook)
        self._looks = Random(seed)
        # A short one that waits ends long ones, which then do few steps.
        self._lengths = (1, 5, 8, 8, 8) if reads else (1, 2, 5)
        self._death = Takeover(seed, self.notebook) if dies else None
        self._name = f"seed {seed}, {mode}, replicas={replicas}, careful={careful}"

    def run(self, steps: int) -> Counter[str]:
        """Let so much happen; return how often what happened."""
        try:
            self._run(steps)
        except Exception as error:
            error.add_note(self._name)
            raise
        return self.world.counts

    def _run(self, steps: int) -> None:
        world, notebook = self.world, self.notebook
        end = world.steps + steps
        try:
            while world.steps < end:
                self._step()
        except NotebookDiedError:
            assert self._death is not None
            self._death.run()
            return
        world.faults = False
        for process in (*world.servers.values(), *notebook.sessions, notebook):
            if process.frozen:
                process.wake()
        if self._waiting is not None:
            self._waiting.close()
        notebook.wish_nothing()
        end = world.steps + _PEACE
        while world.steps < end:
            notebook.do(notebook.round) if world.chance(0.2) else world.step()
            notebook.feed()
            self._raise()
            self._look()
            if notebook.recovering or self._is_lost() or self._lacks_tables():
                notebook.recover()
            alive = [server for server in notebook.watched() if server.alive]
            if len(alive) <= notebook.layout.replicas:
                world.server()
            if world.chance(0.02) and self._at_peace():
                break
        else:
            raise AssertionError(f"it never comes to an end: {notebook.queue.statistics()}")
        self._check()

    def _step(self) -> None:
        self._act()
        self.world.step()
        self._look()
        if self._death is not None and self._death.due():
            raise NotebookDiedError

    def _act(self) -> None:
        world, notebook = self.world, self.notebook
        often = 0.03 if notebook.splits else 0.05
        if self._cancels is not None and self._cancels.random() < often:
            notebook.do(lambda: notebook.cancel(self._cancels))
        if self._reads is not None and self._reads.random() < 0.005:
            self._hurt_a_worker()  # so that more steps take again what earlier attempts have taken
        if self._tells is not None and self._tells.random() < 0.05:
            notebook.do(notebook.tell)
        if self._waits is not None:
            notebook.do(self._wait)
        if self._marks is not None:
            self._marks.act()
            assert notebook.direct is not None
            notebook.direct.act()
            if notebook.half and world.chance(_HURT):
                self._hurt_a_server()
        choice = world.random.random()
        if choice < 0.10:
            notebook.do(notebook.feed)
        elif choice < 0.20:
            notebook.do(notebook.round)
        elif choice < 0.23 and notebook.rows.next < ROOM - max(self._lengths):
            self._raise()
            if not notebook.queue.failing() and self._waiting is None:
                notebook.put(1 if self._long is None else self._long.choice(self._lengths))
        elif choice < 0.235:
            self._hurt_a_worker()
        elif choice < 0.240:
            self._hurt_a_server()
        elif choice < 0.242:
            notebook.freeze() if not notebook.frozen and world.chance(0.3) else notebook.wake()
        elif choice < 0.245:
            notebook.rearrange()
        elif choice < 0.247 and len(world.servers) < 9:
            world.server()
        elif choice < 0.248:
            for _ in range(60):  # an hour
                world.random.choice(list(world.servers.values())).host.tick()
        elif choice < 0.27:
            frozen = [each for each in world.servers.values() if each.frozen]
            if frozen:
                world.random.choice(frozen).wake()
        elif (
            choice < 0.29
            and not self._careful
            and not (self._marks and self._marks.busy)
            and (notebook.recovering or self._wants_recovery())
        ):
            notebook.do(notebook.recover)

    def _wait(self) -> None:
        notebook, random = self.notebook, self._waits
        assert random is not None
        if self._waiting is None:
            if random.random() < 0.01:
                self._waiting = notebook.saved() if random.random() < 0.3 else notebook.joined()
        elif random.random() < 0.1 and next(self._waiting, True):
            self._waiting = None

    def _look(self) -> None:
        """Look at what reads would see, if nothing runs at this moment."""
        scheduler = self.notebook.queue.scheduler
        if (
            self._looks.random() < _LOOKED
            and scheduler.gate.complete()  # else the question would have it begin something
            and scheduler.at_rest()
        ):
            assert_whole(self.notebook)

    def _hurt_a_worker(self) -> None:
        world, notebook = self.world, self.notebook
        worker = world.random.choice(notebook.workers)
        match world.random.choice(["kill", "freeze", "lose"]):
            case "kill":
                worker.kill()
                notebook.broken(worker)
            case "freeze":
                worker.freeze()
                notebook.broken(worker)
                # It wakes when another one has taken its closures over, perhaps.
                world.send(notebook, worker.wake)
            case "lose":
                notebook.broken(worker)  # the connection broke, and it goes on

    def _hurt_a_server(self) -> None:
        world = self.world
        alive = [each for each in self.notebook.watched() if each.alive]
        if not alive:
            return
        server = world.random.choice(alive)
        if world.chance(0.6):
            server.freeze()
        elif len(alive) > 2 and (not self._careful or self._is_spare(server)):
            server.kill()

    def _is_spare(self, server: Server) -> bool:
        """Whether all that a server has is on another one that is sure to take over."""
        for place in self.notebook.layout.placements:
            found = [self.world.servers[a.key] for a in (place.primary, *place.synced) if a]
            leaving = [self.world.servers[a.key] for a in place.leaving]
            others = [each for each in found if each.alive and each is not server]
            if server in (*found, *leaving) and not others:
                return False
        return True

    def _is_lost(self) -> bool:
        notebook = self.notebook
        return notebook.unmade or any(place.primary is None for place in notebook.layout.placements)

    def _lacks_tables(self) -> bool:
        """Whether a read would say to call recover: a table was dropped or lost, or it waits."""
        for index, place in enumerate(self.notebook.layout.placements):
            assert place.primary is not None
            server = self.world.servers[place.primary.key]
            if server.alive and index in server.host._hosted:
                shard = server.host._hosted[index].shard
                waits = shard.log.loading and not (self._marks and self._marks.busy)
                if waits or TABLE not in shard.tables():
                    return True
        return False

    def _wants_recovery(self) -> bool:
        """Whether somebody would call recover: something is lost, or may be."""
        return self._is_lost() or self.world.chance(0.02)

    def _raise(self) -> None:
        with contextlib.suppress(ValueError, PsnbError):
            self.notebook.queue.done()

    def _at_peace(self) -> bool:
        notebook, world, layout = self.notebook, self.world, self.notebook.layout
        statistics = notebook.queue.statistics()
        waits = statistics.queued or statistics.in_flight or statistics.failing or statistics.paused
        try:
            if waits or notebook.recovering or not notebook.queue.done():
                return False
        except ServerUnresponsiveError:  # it was so a moment ago
            return False
        if not all(each.done for each in world.pending):
            return False
        for place in layout.placements:
            whole = place.primary is not None and len(place.synced) == layout.replicas
            if not whole or place.syncing or place.successor or place.leaving:
                return False
        return all(
            set(server.host._hosted)
            == {i for i, place in enumerate(layout.placements) if server.address in place.servers}
            for server in notebook.watched()
            if server.alive
        )

    def _check(self) -> None:
        notebook, world = self.notebook, self.world
        if self._careful:
            assert not notebook.lost_at
        values = {}
        for index, place in enumerate(notebook.layout.placements):
            assert place.primary is not None
            holders = [world.servers[each.key].host for each in (place.primary, *place.synced)]
            held = [contents(host, index) for host in holders]
            for other in held[1:]:
                np.testing.assert_array_equal(other, held[0])
            values[index] = held[0]
            if notebook.followers is not None:
                self._check_rows(index, holders)
            if notebook.marks:
                shards = [each._hosted[index].shard for each in holders]
                for shard in shards[1:]:
                    assert content(shard) == content(shards[0]), f"a replica of {index} differs"
        world.counts["closures"] += len(notebook.closures)
        for closure in notebook.closures:
            for row in range(closure.first, closure.first + closure.granted):
                self._check_step(closure, row, {i: float(v[row]) for i, v in values.items()})
        if notebook.splits:
            self._check_elements()
        for server in notebook.watched():
            for held in server.host._hosted.values() if server.alive else ():
                held.shard.run(notebook.settled())
                held.shard.run(EndWriter(WRITER))
                assert self._mode == "geo" or not len(held.shard.log)
                held.shard.run(EndWriter(notebook.queue.name))

    def _check_rows(self, index: int, holders: Sequence[Host]) -> None:
        for other in holders[1:]:
            assert_same(*(host._hosted[index].shard for host in (holders[0], other)))
        found = table_of(holders[0], index).describe_rows()
        self.world.counts["rows that left for others"] += found["evicted"]
        self.world.counts["rows of which the time was over"] += found["expired"]
        self.world.counts["pushes to rows that had left"] += found["missed"]

    def _check_step(self, closure: Work, row: int, found: dict[int, float]) -> None:
        notebook, status = self.notebook, closure.remote.status
        told = f"step {row} of {closure} {status}: {found}"
        assert closure.remote.status not in (ClosureStatus.QUEUED, ClosureStatus.RUNNING), told
        counted, outcome = notebook.rounds.get(closure.execution.round, ((), None))
        share = 1.0
        if self._mode == "sync":
            share = len(counted) if commit_of(closure) in counted else 1.0
        sums = {i: round(value * share) for i, value in found.items() if value}
        if row >= closure.number or outcome is not None:
            assert not sums, f"it has not happened, and left something: {told}"
            return
        begun = [begun for (at, _), (_, begun) in notebook.wrote.items() if at == row]
        if any(map(notebook.taken_back, begun)) and not sums:
            notebook.world.counts["steps taken back"] += 1
            return
        attempt = self._attempt(closure, row, sums)
        if attempt is None:
            return  # nothing is left of it, and nobody can tell where it was
        if (row, attempt) in notebook.quiet:
            assert not sums, f"it wrote nothing, and left something: {told}"
            return
        chosen, begun = notebook.wrote[row, attempt]
        assert not notebook.taken_back(begun), f"it was taken back, and is there: {told}"
        for index, value in sums.items():
            assert value == code(attempt), f"it left something else than attempt {attempt}: {told}"
            assert index in {shard.number for shard in chosen}, told
        for shard in chosen:
            index = shard.number
            since = max(notebook.lost_at.get(index, -1), notebook.risked_at.get(index, -1))
            assert index in sums or begun <= since or self._forgotten(closure), (
                f"shard {index} lacks what attempt {attempt} wrote in step {begun}, "
                f"and was lost in {since}: {told}"
            )

    def _attempt(self, closure: Work, row: int, sums: dict[int, int]) -> int | None:
        """Return which attempt at a step has counted; None if that cannot be told."""
        if row in (counted := _counted(closure)):
            return counted[row]
        # Servers knew that it was done, as a later one was, and no more.
        known = {attempt for at, attempt in self.notebook.wrote if at == row}
        found = {attempt for attempt in known if code(attempt) in sums.values()}
        quiet = any(at == row for at, _ in self.notebook.quiet)
        return next(iter(found or known)) if found or (len(known) == 1 and not quiet) else None

    def _check_elements(self) -> None:
        """Assert that steps have used each element once that is not left to be read."""
        notebook, used = self.notebook, Counter[Element]()
        assert notebook.epoch is not None
        counted = {each for closure in notebook.closures for each in _counted(closure).items()}
        for attempt in counted:
            used.update(notebook.used[attempt])
        state = notebook.leases.state(notebook.epoch)
        left = Counter(each for part in state["ranges"] for each in self._elements(*part))
        every = Counter(
            each for split in range(len(notebook.splits)) for each in self._elements(split)
        )
        # A worker may call a step effective when its closure was cancelled, as servers knew of no
        # commit of it: they have lost that. Its elements count as used.
        stray = Counter(
            each for attempt in notebook.effective - counted for each in notebook.used[attempt]
        )
        lost, twice = every - used - left, used + left - every
        assert not twice, f"used twice, or used and left: {twice}"
        assert not lost - stray, f"neither used nor left: {lost - stray}"
        visits = used.total() + lost.total()
        assert state["visits"] == visits, f"{state['visits']} visits of {visits}"
        for worker in notebook.sessions:
            notebook.leases.lose(worker.state)
        ask = AskLease(notebook.epoch, notebook.rows.next, None)
        again = Counter[Element]()
        while (lease := notebook.leases.lease(self, ask)) is not None:
            again.update(self._elements(lease.split, lease.state, lease.count))
        assert again == left, f"nobody can read: {left - again}"
        self.world.counts["elements used"] += used.total()
        self.world.counts["elements left"] += left.total()

    def _elements(
        self, split: int, first: int | None = None, count: int | None = None
    ) -> list[Element]:
        first = first or 0
        end = self.notebook.splits[split] if count is None else first + count
        return [(split, position) for position in range(first, end)]

    def _forgotten(self, closure: Work) -> bool:
        """Whether the worker that had learned something from a closure could not send it."""
        notebook = self.notebook
        if self._mode != "geo":
            return False
        worker = notebook.ran.get(closure.id)
        for asking, several in notebook.doubts:
            if asking.remote.status is ClosureStatus.FAILED and commit_of(closure) in several:
                return True  # and whoever joined has heard of it
        return worker is None or worker.lost or commit_of(closure) in notebook.forgotten


def _counted(closure: Work) -> dict[int, int]:
    """Return the steps that have had their effect, with their attempts, as the notebook knows."""
    remote = closure.remote
    if isinstance(remote, StepValues):
        return dict(pickle.loads(each) for each in remote.arrived)
    return dict([remote.returned()]) if remote.status is ClosureStatus.COMPLETED else {}


def episode(seed: int) -> Episode:
    """Return an episode of whatever kind."""
    kinds = [(0, False), (1, False), (1, True)]
    replicas, careful = kinds[seed // len(MODES) % len(kinds)]
    mode = MODES[seed % len(MODES)]
    marks = seed % 12 in (1, 5, 6, 7)
    reads = seed % 4 == 1 or (mode == "async" and seed % 4 == 2)
    return Episode(
        seed,
        mode=mode,
        replicas=replicas,
        careful=careful and not marks,
        cancels=reads and mode != "geo" and seed % 8 in (1, 2),
        tells=seed % 7 in (1, 3, 4, 5),
        dies=seed % 7 in ((2, 3, 4, 5) if mode == "sync" else (3, 4)),
        long=mode == "async" and (seed % 5 in (3, 4) or (reads and seed % 5 != 0)),
        reads=reads,
        rows=seed % 11 in (0, 2, 7, 10),
        waits=seed % 5 == 0 or seed % 9 in (2, 8),
        marks=marks,
    )
