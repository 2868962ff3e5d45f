"""Where exceptions were raised, as it is told elsewhere."""

from __future__ import annotations

from psnb._src.protocol.packing import dumps
from psnb._src.protocol.remote_traceback import RemoteTraceback


def deep(count: int) -> None:
    if count == 0:
        raise ValueError("at last")
    deep(count - 1)


def test_a_deep_recursion_is_shown_by_its_ends() -> None:
    try:
        deep(200)
    except ValueError as error:
        lines = RemoteTraceback.of(error).text().splitlines()
    assert lines[1] == "    deep(200)"
    assert "  [... 182 frames more ...]" in lines
    assert lines[-1] == '    raise ValueError("at last")'
    assert len(lines) < 50


def test_what_psnb_does_for_the_user_is_left_out() -> None:
    try:
        dumps((x for x in ()), "it")
    except TypeError as error:
        lines = RemoteTraceback.of(error).text().splitlines()
    assert len(lines) == 2
    assert lines[1] == '    dumps((x for x in ()), "it")'


def test_a_cause_that_the_message_repeats_is_not_named_again() -> None:
    try:
        try:
            raise KeyError("name")
        except KeyError as error:
            raise ValueError(f"no row: {error}") from error
    except ValueError as error:
        text = RemoteTraceback.of(error).text()
    assert "caused by" not in text
    assert text.count("line ") == 2


def test_an_exception_that_was_never_raised_has_no_frames() -> None:
    assert RemoteTraceback.of(ValueError("boo")).text() == ""
