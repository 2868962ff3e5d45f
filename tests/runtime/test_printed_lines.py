"""What closures print on a worker."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from psnb._src.runtime.printed_lines import PrintedLines, end_printed_line
from psnb._src.runtime.worker_context import Cancellation, WorkerContext, entered


class Recorder(io.StringIO):
    """Notes each write of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


@contextmanager
def closure() -> Iterator[list[str]]:
    """Run a closure of worker ``w`` in this thread; give what is written, by writes."""
    recorder = Recorder()
    context = WorkerContext(0, 1, "w", 1, lambda metrics: None, Cancellation(), None, None)  # type: ignore[arg-type]
    with redirect_stdout(PrintedLines(recorder)), entered(context):  # type: ignore[type-var]
        yield recorder.written


def test_a_line_is_written_at_once_with_the_workers_name() -> None:
    with closure() as written:
        print("loss", 0.5)
        assert written == ["[w] loss 0.5\n"]


def test_each_of_several_lines_has_the_name() -> None:
    with closure() as written:
        print("a\nb")
        assert written == ["[w] a\n", "[w] b\n"]


def test_a_line_that_was_begun_is_written_when_the_closure_ends() -> None:
    with closure() as written:
        print("a", end="", flush=True)
        assert written == []
        end_printed_line()
        assert written == ["[w] a\n"]
        end_printed_line()
        assert written == ["[w] a\n"]


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    with closure() as written:
        print("x" * 5000, end="")
        assert [len(each) for each in written] == [len("[w] \n") + 4096]


def test_what_is_printed_outside_of_closures_passes_through() -> None:
    recorder = Recorder()
    with redirect_stdout(PrintedLines(recorder)):  # type: ignore[type-var]
        print("a", end="")
    assert "".join(recorder.written) == "a"
