"""Loading: the threads that read the pieces of a dataset into the memory of this process."""

from __future__ import annotations

import threading
from collections import deque

from psnb._src.data.memory.memory import Memory


class Loading:
    """Reads all pieces of a generation, in threads that share a queue of the remaining ones."""

    def __init__(self, memory: Memory, generation: int, threads: int) -> None:
        self.memory, self.generation = memory, generation
        self._left = deque(range(memory.pieces))  # each operation on it is atomic
        self._errors: list[BaseException] = []
        arguments = memory, generation, self._left, self._errors
        self._threads = [
            threading.Thread(target=_load, args=arguments, name=f"psnb-load-{n}", daemon=True)
            for n in range(min(threads, max(1, memory.pieces)))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait for the end; raise the first error."""
        self.join()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Begin no more pieces."""
        self._left.clear()

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join()


def _load(memory: Memory, generation: int, left: deque[int], errors: list[BaseException]) -> None:
    try:
        while True:
            try:
                number = left.popleft()
            except IndexError:
                return
            memory.load(generation, number)
    except BaseException as error:  # `wait` raises it
        errors.append(error)
        left.clear()
