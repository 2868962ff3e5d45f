"""WorkerMemory: a worker's part of a dataset in the memory of the workers.

`WorkerMemory` is a per-worker value. The functions from `survey` on run in closures that
`psnb._src.coordinator.datasets` schedules; each returns what the worker has then (`WorkerPieces`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from psnb._src.data import Dataset, Memory, MemoryStatistics, ShufflePlan
from psnb._src.runtime.leasing import LeasedSplitReader
from psnb._src.runtime.mail import Mail
from psnb._src.runtime.resources import lease_requests
from psnb._src.runtime.worker_context import worker_context
from psnb.errors import ConfigurationError, WorkerLostError


class WorkerPieces(NamedTuple):
    """The pieces that a worker has.

    Attributes
    ----------
    worker, address : str
        The worker.
    part : str
        Changes when the worker was started again and has lost its pieces.
    held : MemoryStatistics
        Its pieces.
    sent : dict
        How many examples went to each piece, if some were sent.
    """

    worker: str
    address: str
    part: str
    held: MemoryStatistics
    sent: Mapping[int, int]


class WorkerMemory:
    """Pieces, and the name under which other workers send examples here.

    Parameters
    ----------
    memory : Memory
        The pieces.
    mail : Mail
        This worker's mailbox.
    name : str
        The same on all workers of the dataset, and different for every dataset.
    worker : str
        This worker.
    """

    def __init__(self, memory: Memory, mail: Mail, name: str, worker: str) -> None:
        self.memory, self._mail, self._name, self._worker = memory, mail, name, worker
        self._part = uuid.uuid4().hex
        mail.receive_as(name, memory.receive)

    def found(self, generation: int, sent: Mapping[int, int] | None = None) -> WorkerPieces:
        """Return the pieces of a generation that are here."""
        held = self.memory.statistics(generation)
        return WorkerPieces(self._worker, self._mail.address, self._part, held, sent or {})

    def scatter(
        self,
        generation: int,
        numbers: Iterable[int],
        new: int,
        layout: ShufflePlan,
        addresses: Sequence[str],
    ) -> WorkerPieces:
        """Send the examples of pieces to their places in another layout; see `Memory`.

        Raises
        ------
        WorkerLostError
            If this worker has lost the pieces, or a worker that they go to cannot be reached.
        DatasetError
            If one of those workers has no room.
        """
        here = self._mail.address
        places = [None if address == here else address for address in addresses]
        sender = self._mail.sender(self._name)
        sent: dict[int, int] = {}
        for number in numbers:
            if not self.memory.has(generation, number):
                raise WorkerLostError(f"worker {self._worker!r} was started again")
            counts = self.memory.scatter(generation, number, new, layout, places, sender.send)
            for piece, count in counts.items():
                sent[piece] = sent.get(piece, 0) + count
        sender.settle()
        return self.found(generation, sent)


def make_worker_memory(
    sources: Sequence[Dataset], seed: int, batch_size: int, limit: int | None, name: str
) -> WorkerMemory:
    """Return the worker's part, with nothing in it yet."""
    context = worker_context()
    mail = context.mail
    if mail is None:
        raise ConfigurationError("a dataset in the memory of workers needs workers")
    granted = mail.memory_limit or psutil.virtual_memory().total // context.num_workers
    memory = Memory(sources, seed, batch_size, limit or granted // 2, mail.folder)
    return WorkerMemory(memory, mail, name, context.worker_name)


def make_memory_iterator(
    mine: WorkerMemory, generation: int, layout: ShufflePlan, epoch: int
) -> LeasedSplitReader:
    """Return the worker's part in an epoch over the pieces."""
    memory = mine.memory
    splits = make_memory_splits(mine, generation, layout)

    def prepare(numbers: Sequence[int]) -> None:
        memory.make(generation, layout, numbers)

    return LeasedSplitReader(splits, epoch, lease_requests, prepare)


def make_memory_splits(
    mine: WorkerMemory, generation: int, layout: ShufflePlan
) -> Sequence[Dataset]:
    """Return the pieces as datasets; one that is not here is made again where it is read."""
    memory = mine.memory
    return [memory.examples(generation, layout, (number,)) for number in range(layout.pieces)]


def survey(mine: WorkerMemory, generation: int) -> WorkerPieces:
    """Return what is here."""
    return mine.found(generation)


def load(mine: WorkerMemory, generation: int, number: int) -> WorkerPieces:
    """Read a piece from its source."""
    mine.memory.load(generation, number)
    return mine.found(generation)


def make(
    mine: WorkerMemory, generation: int, layout: ShufflePlan, numbers: Sequence[int]
) -> WorkerPieces:
    """Make lost pieces again."""
    mine.memory.make(generation, layout, numbers)
    return mine.found(generation)


def begin(mine: WorkerMemory, generation: int, numbers: Sequence[int]) -> WorkerPieces:
    """Note which pieces will be here."""
    mine.memory.begin(generation, numbers)
    return mine.found(generation)


def scatter(mine: WorkerMemory, *arguments: Any) -> WorkerPieces:
    """Send examples to their new places."""
    return mine.scatter(*arguments)


def keep_only(mine: WorkerMemory, generation: int) -> WorkerPieces:
    """Free what belongs to other generations."""
    mine.memory.keep_only(generation)
    return mine.found(generation)


def forget(mine: WorkerMemory, generation: int, current: int) -> WorkerPieces:
    """Free a generation that was given up; return what is here of the current one."""
    mine.memory.forget(generation)
    return mine.found(current)
