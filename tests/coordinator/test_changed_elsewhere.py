"""What a closure changes that stays as it is in the notebook."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.coordinator.closures.functions import FunctionRegistry
from psnb._src.coordinator.closures.lost_changes import changed_elsewhere

seen: list[int] = []
total = 0


def functions() -> dict[str, Callable[..., Any]]:
    """Return functions as a notebook has them: their names say what they change."""
    results: list[int] = []
    counts: Counter[str] = Counter()
    groups: defaultdict[str, list[int]] = defaultdict(list)
    losses = np.zeros(3)
    last = 0

    def appends() -> None:
        results.append(1)

    def counts_up(word: str) -> None:
        counts[word] += 1

    def of_one_within(word: str) -> None:
        groups[word].append(1)

    def fills(number: int) -> None:
        losses[number] = 1.0

    def of_a_global() -> None:
        seen.append(1)

    def a_global() -> None:
        global total
        total += 1

    def a_nonlocal() -> None:
        nonlocal last
        last = 1

    def own() -> list[int]:
        results: list[int] = []
        results.append(1)
        return results

    def reads() -> int:
        return len(results) + counts["a"] + total

    lambdas: list[Any] = []
    lambdas.append(lambda: len(lambdas))  # its line changes what it only reads
    lambdas.append(lambda: lambdas.pop())
    kept, changed = lambdas

    return {"lambda reads": kept, "lambda pops": changed} | {
        each.__name__: each
        for each in (
            *(appends, counts_up, of_one_within, fills, of_a_global, a_global, a_nonlocal),
            *(own, reads),
        )
    }


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("appends", ["results"]),
        ("counts_up", ["counts"]),
        ("of_one_within", ["groups"]),
        ("fills", ["losses"]),
        ("of_a_global", ["seen"]),
        ("a_global", ["total"]),
        ("a_nonlocal", ["last"]),
        ("own", []),
        ("reads", []),
        ("lambda reads", []),
        ("lambda pops", ["lambdas"]),
    ],
)
def test_names_of_what_is_changed(which: str, names: list[str]) -> None:
    function = functions()[which]
    assert changed_elsewhere(function) == names
    assert changed_elsewhere(functools.partial(function)) == names


def test_what_has_no_source_changes_nothing_that_is_known() -> None:
    assert changed_elsewhere(len) == []
    scope: dict[str, Any] = {"found": []}
    exec("def f():\n    found.append(1)", scope)
    assert changed_elsewhere(scope["f"]) == []


@pytest.mark.parametrize("source", ["x", "x\ndef f(:", "x\ny = (((\n", "x\n\0"])
def test_a_file_that_is_no_python_by_now_says_nothing_of_its_functions(
    tmp_path: Path, source: str
) -> None:
    file, scope = tmp_path / "module.py", dict[str, Any]()
    text = f"found = []\ndef f():\n    found.append({source!r})"  # another code each time
    exec(compile(text, str(file), "exec"), scope)
    file.write_text(source)
    assert changed_elsewhere(scope["f"]) == []


def test_a_warning_says_so_once_for_a_function() -> None:
    registry, function = FunctionRegistry(), functions()["appends"]
    with pytest.warns(UserWarning, match=r"^results: a closure changes a copy of it, .* fetch\(\)"):
        registry.register(function)
    registry.register(function)  # warnings are errors
