"""The reference has every public name once; what `make docs` makes of it needs Sphinx."""

from __future__ import annotations

import ast
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


def messages() -> set[str]:
    """Return all texts in the package, with … where something is put into them."""
    found = set()
    for path in (ROOT / "psnb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.JoinedStr(values=parts):
                    found.add("".join(text(part) for part in parts))
                case ast.Constant(value=str(whole)):
                    found.add(whole)
    return found


def text(part: ast.expr) -> str:
    """Return a part of a text, or … for what is put in."""
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def test_the_common_errors_have_the_messages_that_are_raised() -> None:
    page = (ROOT / "docs" / "reference" / "common-errors.md").read_text()
    quoted = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(quoted) >= 20
    known = {re.sub(r"%[sr]", "…", each) for each in messages()}
    assert not [each for each in quoted if not any(each in message for message in known)]
