"""Errors as a notebook shows them; to the letter in tests/integration/notebook."""

from __future__ import annotations

import pytest

import psnb
from psnb._src.utils.tracebacks import render, timed_out


@pytest.fixture(autouse=True)
def _outside_of_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show errors as Python does, though other tests have made a shell in this process."""
    monkeypatch.setattr("psnb._src.jupyter_compat._shell", lambda: None)


def refused() -> BaseException:
    try:
        try:
            raise OSError("deep within")
        except OSError as error:
            raise psnb.errors.ClusterError("no scheduler") from error
    except psnb.errors.ClusterError as error:
        return error


def test_to_show_an_error_leaves_it_as_it_was() -> None:
    error = refused()
    cause, traceback = error.__cause__, error.__traceback__
    render(error)
    assert error.__cause__ is cause
    assert cause is not None
    assert error.__context__ is cause
    assert error.__suppress_context__
    assert error.__traceback__ is traceback


def test_a_cause_with_lines_of_the_user_is_shown() -> None:
    assert "OSError: deep within" in "".join(render(refused()))


def test_a_cause_without_lines_of_the_user_is_not() -> None:
    error = refused()
    assert error.__cause__ is not None
    error.__cause__.__traceback__ = None
    assert "deep within" not in "".join(render(error))


def test_psnbs_frames_are_not_shown() -> None:
    with pytest.raises(psnb.errors.ConfigurationError) as raised:
        psnb.local_cluster(workers=0)
    text = "".join(raised.value._render_traceback_())
    assert "test_render.py" in text
    assert "_src" not in text


def test_an_error_of_pythons_own_is_shown_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    error = timed_out("after 1 s")
    monkeypatch.setattr("sys.last_value", error, raising=False)
    shown = error._render_traceback_()  # type: ignore[attr-defined]
    assert "".join(shown).endswith("TimeoutError: after 1 s\n")
