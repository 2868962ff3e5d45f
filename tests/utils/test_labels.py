"""Readable names of coordinators."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest

from psnb import errors
from psnb._src import jupyter_compat
from psnb._src.utils.labels import Labels, check_label, made_up_label


class Owner:
    """What has a name."""


def test_a_second_owner_gets_a_number() -> None:
    labels, owners = Labels(), [Owner(), Owner(), Owner()]
    taken = [labels.take("flights", each) for each in owners]
    assert taken == ["flights", "flights 2", "flights 3"]


def test_a_name_is_free_again_when_it_is_given_back_or_its_owner_is_gone() -> None:
    labels, owner = Labels(), Owner()
    labels.give_back(labels.take("flights", owner))
    labels.take("flights", Owner())
    gc.collect()
    assert labels.take("flights", owner) == "flights"


@pytest.mark.parametrize("name", ["", "  ", 5, "x" * 201])
def test_an_unreadable_name_is_refused(name: object) -> None:
    with pytest.raises(errors.ConfigurationError, match="name must be a text"):
        check_label(name)


def test_a_script_without_a_name_gets_two_words() -> None:
    first, second = made_up_label().split()
    assert first.isalpha()
    assert second.isalpha()


@pytest.mark.parametrize(
    ("session", "variables", "name"),
    [
        ("/home/me/air traffic.ipynb", {}, "air traffic"),
        ("", {"__vsc_ipynb_file__": "C:\\work\\flights.ipynb"}, "flights"),
        ("console-1-2c7a", {}, ""),
    ],
)
def test_a_notebook_gives_its_files_name(
    monkeypatch: pytest.MonkeyPatch, session: str, variables: dict[str, str], name: str
) -> None:
    kernel = SimpleNamespace(shell=SimpleNamespace(user_ns=variables))
    shell = SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert jupyter_compat.notebook_name() == name
    assert not name or made_up_label() == name
