"""What the documents name exists, and takes the arguments that they give it."""

from __future__ import annotations

import inspect
import json
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import psnb
import psnb.data

ROOT = Path(__file__).parents[2]

PAGES = sorted((ROOT / "docs").glob("[!_]*/*.md")) + sorted((ROOT / "docs").glob("*.md"))
"""The site's pages, but for those that are notebooks."""

DOCUMENTS = [
    ROOT / "README.md",
    *PAGES,
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]

NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

CLASSES: dict[str, Any] = {
    "coordinator": psnb.ClusterCoordinator,
    "strategy": psnb.ParameterServerStrategy,
    "trainer": psnb.Trainer,
    "manager": psnb.CheckpointManager,
    "remote": psnb.RemoteValue,
    "history": psnb.TrainingHistory,
    "iterator": psnb.data.DatasetIterator,
    "table": psnb.Embedding,
    "users": psnb.Embedding,
    "Embedding": psnb.Embedding,
    "Variable": psnb.Variable,
}
"""Of which class what documents call by these names is."""

TENSORFLOWS = {"strategy.scope", "coordinator.ClusterCoordinator"}
"""What others have by such names."""

_NAME = re.compile(rf"\b(?:psnb|{'|'.join(CLASSES)})(?:\.(?!md\b)[A-Za-z_]\w*)+\b(?!-)")
_CALL = re.compile(rf"({_NAME.pattern})\(([^`]*)\)")


def text_of(path: Path) -> str:
    """Return a document's text; of a notebook that of its cells which are text."""
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def resolved(name: str) -> Any:
    """Return what a name with dots is, whatever modules must be imported for it."""
    first, *rest = name.split(".")
    if first in CLASSES:
        return getattr(CLASSES[first], rest[0])  # of what that returns, nothing is known
    found = import_module(first)
    for number, part in enumerate(rest, 2):
        if not hasattr(found, part):
            import_module(".".join(name.split(".")[:number]))
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_the_names_in_a_document_exist(path: Path) -> None:
    for name in set(_NAME.findall(text_of(path))) - TENSORFLOWS:
        try:
            resolved(name)
        except (AttributeError, ImportError) as error:
            raise AssertionError(f"{path.name} names {name}: {error}") from error


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_the_arguments_in_a_document_exist(path: Path) -> None:
    for code in re.findall(r"`([^`\n]+)`", text_of(path)):
        for name, arguments in _CALL.findall(code):
            function = None if name in TENSORFLOWS else resolved(name)
            if not callable(function):
                continue  # a property, of whose value nothing is known
            known = inspect.signature(function).parameters
            if any(each.kind is each.VAR_KEYWORD for each in known.values()):
                continue
            # Those of calls within it are others' arguments.
            own = reduce(lambda text, _: re.sub(r"\([^()]*\)", "", text), range(3), arguments)
            for keyword in re.findall(r"(\w+)=(?!=)", own.split(")")[0]):
                assert keyword in known, f"{path.name}: `{code}`: {name} has no {keyword}="


def test_tests_that_show_what_survives_exist_and_with_a_star_start_processes_by_hand() -> None:
    named = re.findall(
        r"`(test_\w+\.py)`(\*?)", (ROOT / "docs" / "concepts" / "failures.md").read_text()
    )
    assert len(named) > 10
    for name, star in named:
        folders = [ROOT / "tests" / folder for folder in ("integration", "cluster")]
        (file,) = (file for folder in folders for file in folder.rglob(name))
        by_hand = re.search(r"\b(CommandLine|cluster_of|on_both)\(", file.read_text())
        assert by_hand or not star, name
