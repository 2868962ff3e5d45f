"""Whose code a file is: psnb's, the user's, or a library's. Pure."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_PSNB = str(Path(__file__).parents[1]) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_LIBRARIES = {"site-packages", "dist-packages"}
_TYPED = ("<ipython-input", "<stdin>", "<string>")
"""How the names of code begin that the user typed, and that is in no file."""
_EXTENSIONS = (".pyx", ".pxi", ".pxd")
"""How the sources of extensions end, which are not there: their paths begin anywhere."""


def is_psnbs(file: str) -> bool:
    """Return whether code with this file's name is psnb's own."""
    return file.startswith(_PSNB)


def users_level() -> int:
    """Return the ``stacklevel`` of a warning by which the caller names the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_psnbs(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def is_users(file: str) -> bool:
    """Return whether code with this file's name is the user's: of a cell, a script, a module."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    if file.startswith((_PSNB, _STANDARD)) or file.endswith(_EXTENSIONS):
        return False
    return _LIBRARIES.isdisjoint(Path(file).parts)
