"""Which modules are the user's own, and what is read of them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from psnb import errors
from psnb._src.protocol import modules
from psnb._src.protocol.modules import Uploads, read_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package, from which Python imports."""
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine/__init__.py").write_text("")
    (tmp_path / "package_of_mine/part.py").write_text("x = 1")
    (tmp_path / "package_of_mine/words.txt").write_text("a b")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("package_of_mine")]:
        del sys.modules[name]


def test_of_a_part_the_whole_package_is_read_without_bytecode(folder: Path) -> None:
    files = read_files(importlib.import_module("package_of_mine.part"))
    assert files.name == "package_of_mine"
    assert sorted(files.files) == [
        *("package_of_mine/__init__.py", "package_of_mine/part.py", "package_of_mine/words.txt")
    ]


def test_an_edit_makes_what_was_sent_old(folder: Path) -> None:
    module, uploads = importlib.import_module("package_of_mine.part"), Uploads()
    uploads.note(read_files(module))
    assert uploads.is_current(module.__name__)
    (folder / "package_of_mine/part.py").write_text("x = 2")
    assert not uploads.is_current(module.__name__)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (np, "install it where the workers run"),
        (json, "install it where the workers run"),
        (sys, "install it where the workers run"),
        (sys.modules["__main__"], "travels with its closures"),
        ("features", "takes a module"),
    ],
)
def test_what_is_no_module_of_the_users_is_refused(module: object, message: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=message):
        read_files(module)  # type: ignore[arg-type]


def test_a_file_that_is_no_python_is_refused(folder: Path) -> None:
    module = importlib.import_module("package_of_mine.part")
    (folder / "package_of_mine/part.py").write_text("x = (")
    with pytest.raises(SyntaxError, match="never closed"):
        read_files(module)


def test_a_package_with_much_data_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_MOST_BYTES", 4)
    with pytest.raises(errors.ConfigurationError, match="keep data elsewhere"):
        read_files(importlib.import_module("package_of_mine"))
