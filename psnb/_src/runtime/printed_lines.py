"""PrintedLines: what closures print carries the worker's name, and comes in whole lines. Pure.

Workers of a local cluster print where the notebook does, each from a process of its own. A line
that is written at once is not torn by those of others.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

from psnb._src.runtime.worker_context import current_context

_MOST = 1 << 12
"""Characters of a line that is kept until it ends; longer ones are cut in two."""


class PrintedLines:
    """A process's standard output.

    Any thread may write. Those that run closures get whole lines; what others write passes through.

    Parameters
    ----------
    stream : file
        Where it goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = threading.local()  # each thread's line that has not ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what is whole, and keep the rest."""
        if current_context() is None:
            return self._stream.write(text)
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        while len(rest) > _MOST:
            lines.append(rest[:_MOST])
            rest = rest[_MOST:]
        self._begun.text = rest
        self._put(lines)
        return len(text)

    def writelines(self, texts: Any) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)

    def end_line(self) -> None:
        """Write what this thread has begun; in a closure, at its end."""
        rest, self._begun.text = getattr(self._begun, "text", ""), ""
        if rest:
            self._put([rest])

    def _put(self, lines: list[str]) -> None:
        context = current_context()
        if lines and context is not None:
            # One call, and flushed: one write of the process.
            self._stream.write("".join(f"[{context.worker_name}] {line}\n" for line in lines))
            self._stream.flush()


def end_printed_line() -> None:
    """Write what the closure of this thread has printed without an end of line."""
    if isinstance(sys.stdout, PrintedLines):
        sys.stdout.end_line()
