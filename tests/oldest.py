"""Prints the oldest supported versions of what psnb needs, as constraints for pip.

They come from the bounds in ``pyproject.toml``, so `make test-oldest` tests what those promise. Of
a bound ``>= 2.0`` the newest ``2.0.*`` is taken: its errors are mended, but it can do no more.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

EXTRAS = ("jax", "data", "security", "demo")
"""The extras whose bounds count; tools for tests may be new."""


def pins(requirements: Iterable[str]) -> list[str]:
    """Return a constraint for each requirement that has a lower bound."""
    found = (re.match(r"([\w-]+)(?:\[\w+\])? >= ([\d.]+)$", each) for each in requirements)
    return [f"{each[1]}=={each[2]}.*" for each in found if each is not None]


def requirements() -> list[str]:
    """Return what psnb needs, extras included."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = (each for name in EXTRAS for each in project["optional-dependencies"][name])
    return [*project["dependencies"], *extras]


if __name__ == "__main__":
    print("\n".join(pins(requirements())))
