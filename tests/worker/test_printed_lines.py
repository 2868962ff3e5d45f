"""What closures print on a worker."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from msgspec.structs import replace

from psnb._src.worker.context import Cancellation, WorkerContext, entered
from psnb._src.worker.printing import (
    LINES_PER_SECOND,
    MOST_LINES,
    PrintedLines,
    Throttle,
    end_printed_lines,
)


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
    throttle = Throttle()
    out, err = PrintedLines(recorder, throttle), PrintedLines(recorder, throttle)  # type: ignore[arg-type]
    with redirect_stdout(out), redirect_stderr(err), entered(context):  # type: ignore[type-var]
        yield recorder.written


def test_a_line_is_written_at_once_with_the_workers_name() -> None:
    with closure() as written:
        print("loss", 0.5)
        assert written == ["[w] loss 0.5\n"]


def test_each_of_several_lines_has_the_name() -> None:
    with closure() as written:
        print("a\nb")
        assert written == ["[w] a\n", "[w] b\n"]


def test_lines_are_sent_as_they_are_written_with_their_closure() -> None:
    sent: list[tuple[str, list[str]]] = []
    context = WorkerContext(0, 1, "w", 1, lambda *_: None, function="step", closure=7)
    context = replace(context, send_lines=lambda closure, lines: sent.append((closure, lines)))
    out = PrintedLines(Recorder(), Throttle())  # type: ignore[arg-type]
    with redirect_stdout(out), entered(context):  # type: ignore[type-var]
        print("10%\r20%\nb")
    assert sent == [("step #7", ["20%"]), ("step #7", ["b"])]


def test_lines_are_sent_though_the_stream_is_broken() -> None:
    sent: list[tuple[str, list[str]]] = []
    context = WorkerContext(0, 1, "w", 1, lambda *_: None)
    context = replace(context, send_lines=lambda closure, lines: sent.append((closure, lines)))
    broken = Recorder()
    broken.close()
    with pytest.raises(ValueError, match="closed"), entered(context):
        PrintedLines(broken, Throttle()).write("last words\n")  # type: ignore[arg-type]
    assert sent == [("per-worker value", ["last words"])]


def test_a_line_that_was_begun_is_written_when_the_closure_ends() -> None:
    with closure() as written:
        print("a", end="", flush=True)
        assert written == []
        end_printed_lines()
        assert written == ["[w] a\n"]
        end_printed_lines()
        assert written == ["[w] a\n"]


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    with closure() as written:
        print("x" * 5000, end="")
        assert [len(each) for each in written] == [len("[w] \n") + 4096]


def test_what_is_printed_outside_of_closures_passes_through() -> None:
    recorder = Recorder()
    with redirect_stdout(PrintedLines(recorder, Throttle())):  # type: ignore[type-var]
        print("a", end="")
    assert "".join(recorder.written) == "a"


def test_what_logging_writes_comes_like_what_is_printed() -> None:
    with closure() as written:
        logger = logging.Logger("closures")  # without handlers: the last resort is standard error
        logger.warning("slow")
    assert written == ["[w] slow\n"]


def test_of_a_progress_bar_only_its_end_is_shown() -> None:
    with closure() as written:
        for percent in (0, 50, 100):
            print(f"\r{percent}%", end="")
        print()
        print("windows\r")
    assert written == ["[w] 100%\n", "[w] windows\n"]


def test_beyond_a_rate_lines_are_left_out_and_counted() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    assert len(throttle.admit(["x"] * (MOST_LINES + 7))) == MOST_LINES
    assert throttle.admit(["x"]) == []
    now[0] += 3 / LINES_PER_SECOND
    assert throttle.admit(["a"]) == ["... 8 lines were left out, as there were too many", "a"]
    assert throttle.admit(["b", "c", "d"]) == ["b", "c"]
    assert throttle.admit([], last=True) == ["... 1 lines were left out, as there were too many"]
    assert throttle.admit([], last=True) == []


def test_the_number_left_out_is_printed_when_the_closure_ends() -> None:
    with closure() as written:
        print("x\n" * (MOST_LINES + 5000), end="")
        end_printed_lines()
    assert written[-1].startswith("[w] ... 5,000 lines")
