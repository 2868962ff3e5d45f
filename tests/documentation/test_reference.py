"""The reference has every public name once; what `make docs` makes of it needs Sphinx."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from types import ModuleType

import pytest

from tests.documentation.test_names import ROOT

PAGES = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))

MODULES = ("checkpoint", "data", "demo", "errors", "jax", "keras", "metrics", "torch")


def shown() -> Counter[str]:
    """Return how often the pages document each name."""
    blocks = re.findall(r"^```\{api\}\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)
    modules = re.findall(r"^\.\. automodule:: (\S+)$", PAGES, re.MULTILINE)
    return Counter([*modules, *"".join(blocks).split()])


def public(module: ModuleType) -> list[str]:
    """Return the full names that a module has for users; `psnb.errors` has no list of them."""
    names = getattr(module, "__all__", None) or [
        name
        for name, each in vars(module).items()
        if getattr(each, "__module__", None) == module.__name__
    ]
    return [f"{module.__name__}.{name}" for name in names]


@pytest.mark.parametrize("name", ["psnb", *(f"psnb.{name}" for name in MODULES)])
def test_every_public_name_is_in_the_reference_once(name: str) -> None:
    found = shown()
    assert not {each: found[each] for each in public(import_module(name)) if found[each] != 1}


def test_the_reference_has_nothing_else() -> None:
    modules = [import_module(name) for name in ("psnb", *(f"psnb.{name}" for name in MODULES))]
    known = {f"psnb.{name}" for name in MODULES}.union(*map(public, modules))
    assert set(shown()) <= known
    assert "psnb._src" not in PAGES
