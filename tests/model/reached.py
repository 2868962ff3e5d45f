"""Which statements of a module were reached: how the model is seen to reach all of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def watched(*modules: ModuleType) -> Iterator[Callable[[], list[str]]]:
    """Watch modules, slowly; yields what returns the statements of functions not reached yet."""
    files = {str(module.__file__): set[int]() for module in modules}

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        files[frame.f_code.co_filename].add(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    def missed() -> list[str]:
        return [
            f"{Path(file).name}:{number}: {text.splitlines()[number - 1].strip()}"
            for file, seen in files.items()
            for text in [Path(file).read_text()]
            for number in sorted(_statements(text) - seen)
        ]

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield missed
    finally:
        sys.settrace(before)


def _statements(text: str) -> set[int]:
    return {
        inner.lineno
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for inner in ast.walk(function)
        if isinstance(inner, ast.stmt) and inner is not function and not _is_docstring(inner)
    }


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
