"""Texts of users are cut where they come from."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.monitor.commands import execute
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.monitor.failures import MOST_BYTES, FailureLog
from psnb._src.monitor.protocol import CommandReply
from psnb._src.protocol.errors import pack_error, unpack_error
from psnb._src.utils.text import ARGUMENT, LINE, NAME, PAGE, shown, truncate, with_article
from psnb.errors import DatasetError
from tests.checkpoint.fakes import Strategy
from tests.conftest import wait_until
from tests.monitor.viewed import FakeViewed

LONG = "begin" + "x" * 5_000_000 + "end"


@given(st.integers(0, 5000), st.integers(100, 3000))
def test_an_excerpt_is_as_long_as_is_allowed_and_tells_how_much_it_lacks(
    length: int, most: int
) -> None:
    text = ("0123456789" * 500)[:length]
    cut = truncate(text, most)
    assert len(cut) <= most
    if length <= most:
        assert cut == text
        return
    begin, _, rest = cut.partition(" [... ")
    missing, _, end = rest.partition(" characters are cut out here ...] ")
    assert text.startswith(begin)
    assert text.endswith(end)
    assert len(begin) + int(missing.replace(",", "")) + len(end) == length


# What a terminal obeys, and a mark that turns the direction of what follows.
ODD = "a\x1b[31m\x07\r\x00\u202eb\n\tc"
ESCAPED = "a\\x1b[31m\\x07\\r\\x00\\u202eb\n\tc"


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert truncate(ODD) == ESCAPED
    assert len(truncate(ODD * 20, 100)) == len(truncate("\x1b" * 99, 100)) == 100


def test_an_error_escapes_what_it_quotes() -> None:
    error = pickle.loads(pickle.dumps(DatasetError(f"no such file: {ODD}")))
    assert str(error) == f"no such file: {ESCAPED}"
    assert error.args == (f"no such file: {ODD}",)


def _failed() -> bytes:
    try:
        raise ValueError(LONG)
    except ValueError as error:
        return pack_error(error, "in closure step(1) on worker 'alice', attempt 1")


def test_a_failure_with_a_long_message_is_short_to_tell_and_to_keep() -> None:
    packed = _failed()
    assert len(packed) < len(LONG) + 2 * PAGE  # the traceback repeats the message
    log = FailureLog(unpack_error)
    log.add("alice", "step #1", packed)
    (failure,) = log.since(0)
    assert len(failure.error) <= LINE
    assert len(failure.traceback) <= PAGE
    assert failure.traceback.startswith("ValueError: begin")
    assert failure.traceback.count("characters are cut out") == 1
    assert failure.traceback.endswith("raise ValueError(LONG)")
    assert len(failure.full) <= PAGE
    assert failure.full.endswith("end")
    assert len(pickle.dumps(log._records[0].packed)) < 100  # it is told from its texts, for good
    assert log.since(0) == (failure,)


def test_unread_exceptions_do_not_fill_the_notebooks_memory() -> None:
    packed = pickle.dumps(ValueError("x" * (MOST_BYTES // 4)))
    log = FailureLog(pickle.loads)
    for number in range(10):
        log.add("alice", f"step #{number}", packed)
    assert sum(len(each.packed) for each in log._records) <= MOST_BYTES
    told = [each.error[:10] for each in log.since(0)]
    assert told == ["not kept: "] * 7 + ["ValueError"] * 3


def test_the_last_exception_is_kept_however_large_it_is() -> None:
    log = FailureLog(pickle.loads)
    log.add("alice", "step #1", pickle.dumps(ValueError("x" * (MOST_BYTES + 1))))
    assert log.last_of("alice").startswith("ValueError: xxx")
    assert len(log.since(0)[0].traceback) == PAGE


def test_events_names_and_replies_are_cut() -> None:
    log = EventLog()
    log.add(EventKind.WORKER_LOST, LONG, LONG)
    (event,) = log.all()
    assert (len(event.message), len(event.worker)) == (LINE, NAME)

    def step() -> None: ...

    step.__qualname__ = LONG
    assert len(FunctionRegistry().register(step).name) == NAME

    viewed = FakeViewed()
    viewed.error = ValueError(LONG)
    replies: list[CommandReply] = []
    command = {"type": "command", "version": 1, "id": LONG, "command": "pause", "arguments": {}}
    execute(viewed, command, "a test", replies.append)
    wait_until(lambda: bool(replies), "the command is answered")
    assert (len(replies[0]["id"]), len(replies[0]["error"])) == (NAME, LINE)


def test_a_checkpoint_that_failed_tells_why_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psnb._src.checkpoint import manager

    def fails(*args: object, **options: object) -> None:
        raise OSError(LONG)

    monkeypatch.setattr(manager, "write_checkpoint", fails)
    made = manager.FolderManager(Strategy(), tmp_path, 1)
    with pytest.raises(OSError, match="begin"):
        made.save()
    assert len(made.status.error) == LINE


@pytest.mark.parametrize(
    ("noun", "said"),
    [
        *(("object", "an object"), ("int64", "an int64"), ("ndarray", "an ndarray")),
        *(("uint64", "a uint64"), ("NoneType", "a NoneType"), ("", "a ")),
    ],
)
def test_a_noun_has_the_article_that_is_spoken(noun: str, said: str) -> None:
    assert with_article(noun) == said


class Closed:
    """As arrays of files that are closed."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise ValueError("it is closed")

    def __repr__(self) -> str:
        return "<a closed one>" + " " * ARGUMENT


class Broken:
    def __repr__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "5"),
        ("text", "'text'"),
        ([1, "a", None], "[1, 'a', None]"),
        (np.zeros(3), "array([0., 0., 0.])"),
        (np.zeros((1000, 2), np.float32), "<ndarray (1000, 2) of float32>"),
        ([np.zeros(1000)] * 2, "[<ndarray (1000,) of float64>, <ndarray (1000,) of float64>]"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...]"),
        (
            {n: n for n in range(10**5)},
            "{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9, ...}",
        ),
        ("x" * 10**6, "'" + "x" * 57),
        (Path("\x1b\n"), r"PosixPath('\x1b\n')"),
        (Closed(), "<a closed one>"),
        ([Closed()], "[<a closed one>"),
        (Broken(), "<Broken whose repr raises SystemExit>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_is_shown_in_one_short_line(value: object, said: str) -> None:
    found = shown(value)
    assert found.startswith(said)
    assert len(found) <= ARGUMENT
    assert found.isprintable()


def test_a_table_is_shown_in_one_short_line() -> None:
    for table in (pd.DataFrame({"a": range(1000)}), pd.Series(range(1000))):
        assert shown(table).isprintable()
        assert len(shown(table)) <= ARGUMENT
