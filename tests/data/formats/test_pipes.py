from __future__ import annotations

import gzip
import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import jax
import numpy as np
import psutil
import pytest
import torch

from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.multi_slot_generator import MultiSlotDataGenerator
from psnb.errors import DatasetError
from tests.conftest import wait_until
from tests.data.formats.samples import open_files, records, write


def piped(command: str) -> MultiSlot:
    return MultiSlot([Slot("a")], command)


def test_the_output_of_the_command_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"7 8\n9 10\n")
    assert records(piped("awk '{print 2, $1, $2}'").read(path)) == [{"a": [7, 8]}, {"a": [9, 10]}]


def test_a_command_gets_compressed_and_remote_files_as_they_are_within(tmp_path: Path) -> None:
    # Larger than what a pipe holds: the feeder has to wait for the command.
    content = b"1 7\n" * 100_000
    path = write(tmp_path, gzip.compress(content), "part.gz")
    assert sum(chunk.count for chunk in piped("cat").read(path)) == 100_000
    fsspec.filesystem("memory").pipe_file("/piped", content)
    assert sum(chunk.count for chunk in piped("cat").read("memory://piped")) == 100_000


def test_reading_resumes_in_the_output(tmp_path: Path) -> None:
    path = write(tmp_path, b"7\n" * 9000)
    form = piped("awk '{print 1, NR}'")
    chunk = next(form.read(path))
    rest = records(form.read(path, chunk.next_offset, chunk.count))
    assert [row["a"][0] for row in rest] == list(range(chunk.count + 1, 9001))
    assert form.splits(path, 10) == [(0, None)]


def test_a_command_may_leave_a_part_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"1 7\n" * 1_000_000), "part.gz")
    assert records(piped("head -n 1").read(path)) == [{"a": [7]}]
    assert records(piped("zcat -f | head -n 1 | tac").read(path)) == [{"a": [7]}]


def test_a_command_that_writes_nothing_makes_an_empty_file(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 7\n")
    assert records(piped("true").read(path)) == []
    with pytest.raises(DatasetError, match="ended with exit status 3"):
        list(piped("exit 3").read(path))


def test_a_part_of_a_pipeline_that_fails_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 7\n")
    with pytest.raises(DatasetError, match="ended with exit status 3"):
        list(piped("(cat; exit 3) | cat").read(path))


def test_a_command_that_fails_is_reported_with_its_status_and_errors(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 7\n")
    with pytest.raises(DatasetError, match=f"{path}: the command 'cat; .*' ended with exit status"):
        list(piped("cat; exit 3").read(path))
    with pytest.raises(DatasetError, match=r"exit status 127; it wrote: .*not-there"):
        list(piped("not-there").read(path))
    with pytest.raises(DatasetError, match="ended with signal 9 and wrote no error"):
        list(piped("kill -9 $$").read(path))


def test_only_the_end_of_many_errors_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 7\n")
    with pytest.raises(DatasetError, match=r"the end$") as error:
        list(piped("seq 100000 >&2; echo the end >&2; exit 1").read(path))
    assert len(str(error.value)) < 5000


def test_a_compressed_file_that_is_corrupt_is_reported_as_such(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"1 7\n" * 9000)[:-9], "part.gz")
    with pytest.raises(DatasetError, match=f"{path}: the data are cut short"):
        list(piped("cat").read(path))


def test_bad_lines_of_the_output_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, b"7\n")
    with pytest.raises(DatasetError, match=f"{path}, line 1, byte 0: slot 'a': x is not a count"):
        list(piped("sed s/7/x/").read(path))


@pytest.mark.parametrize("command", ["cat | cat; sleep 1000", "sleep 1000 & cat"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_reader_that_is_closed_early_ends_the_command_and_its_children(
    suffix: str, command: str, tmp_path: Path
) -> None:
    content = b"1 7\n" * 1_000_000
    path = write(tmp_path, gzip.compress(content, 1) if suffix else content, f"part{suffix}")
    before = psutil.Process().children(recursive=True)
    reader = piped(command).read(path)
    assert next(reader).count
    started = [p for p in psutil.Process().children(recursive=True) if p not in before]
    assert started
    reader.close()
    wait_until(lambda: not any(p.is_running() and p.status() != "zombie" for p in started), "end")


SCRIPT = """
from psnb.data import MultiSlotDataGenerator

class Numbers(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            for number in line.split():
                yield [("a", [int(number), 2**64 - 1])]
        return samples

Numbers().run_from_stdin()
"""


def test_a_generator_is_a_command(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT.encode(), "script.py")
    path = write(tmp_path, b"7 8\n\n9\n")
    found = records(piped(f"{sys.executable} {script}").read(path))
    assert [row["a"] for row in found] == [[number, 2**64 - 1] for number in (7, 8, 9)]


class Lines(MultiSlotDataGenerator):
    """Yields what it is told to."""

    def __init__(self, *samples: object):
        self.samples = samples

    def generate_sample(self, line: str) -> Iterator[object]:  # type: ignore[override]
        return iter(self.samples)


def generated(*samples: object) -> str:
    out = io.StringIO()
    Lines(*samples).run(["line"], out)
    return out.getvalue()


def test_a_generator_writes_a_line_a_sample() -> None:
    samples = [[("a", [1, 2]), ("b", [0.1])], None, [("a", []), ("b", [True, 2.0])]]
    assert generated(*samples) == "2 1 2 1 0.1\n0 2 1.0 2.0\n"


def test_a_generator_writes_texts_as_they_are() -> None:
    assert generated([("a", ["9007199254740993", b"x7"])]) == "2 9007199254740993 x7\n"


@pytest.mark.parametrize("scalar", [np.float32, torch.tensor, jax.numpy.float32])
def test_a_generator_writes_the_fractions_of_scalars(scalar: Callable[[float], object]) -> None:
    assert generated([("a", [scalar(0.5)])]) == "1 0.5\n"


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([[("a", [1])], [("b", [1])]], r"line 1: its slots are \['b'\], not \['a'\]"),
        ([[("a", [-1])]], "line 1.*-1 is not an unsigned 64-bit integer"),
        ([[("a", [2**64])]], "not an unsigned 64-bit integer"),
        ([[("a", [None])]], "line 1.*NoneType"),
        ([[("a", ["x y"])]], "line 1.*'x y' is not one word"),
        ([[("a", [""])]], "line 1.*'' is not one word"),
        ([[("a", "12")]], "line 1.*the values of a slot are a list, found '12'"),
    ],
)
def test_samples_that_cannot_be_written_are_refused(samples: list[object], problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        generated(*samples)


def test_threads_of_a_command_end_with_the_reading(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    opened = open_files()
    path = write(tmp_path, gzip.compress(b"1 7\n"), "part.gz")
    reader = piped("cat").read(path)
    next(reader)
    assert [each for each in open_files() - opened if each.startswith("pipe:")]
    reader.close()
    assert set(threading.enumerate()) <= before
    # Not all that is open: other threads of the process open and close sockets meanwhile.
    assert not {each for each in open_files() - opened if each == path or each.startswith("pipe:")}
