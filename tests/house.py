"""Counts of the package's files and lines, against what they may be at most or must be at least.

``python -m tests.house`` prints them, and ends with an error if one is not as it should be; ``make
lint`` runs it. A count that falls takes its bar with it. A feature that needs more raises the bar
in its own commit, with the reason. *Goal* is what a bar is on its way to.

- *Code* is a line with a token that is neither a comment nor part of a docstring.
- A *section header* is a comment at the left margin with an empty line before and after it: it
  opens a second subject, and so should be a second file.
- A *forwarder* is a method of which the whole body is a call of a method of something that its
  object holds, such as ``return self._queue.put(closure)``. Properties and special methods are not
  among them.
- *Circles* and *arrows up* are those of `tests.test_architecture`, which also sees imports within
  functions and in strings.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.test_architecture import PACKAGE as PSNB
from tests.test_architecture import arrows_up, circles, contract, imports_of

PACKAGE = PSNB / "_src"

LONGEST = 600
"""Lines of a file, with comments, docstrings and empty ones."""

HEADERS = 2
"""Section headers of a file."""

LONGER = {
    "coordinator/coordinator.py": "the public coordinator: most of it is documentation",
    "coordinator/scheduling/scheduler.py": "one state machine: an event may touch all of its state",
    "client/embedding.py": "the public embedding: most of it is documentation",
    "strategy/strategy.py": "the public strategy: most of it is documentation",
}
"""Files that may be longer, and why each is one subject."""

BLANK = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass
class File:
    """What is counted of one file."""

    lines: int
    code: int
    comments: int
    imports: int
    functions: int
    classes: int
    forwarders: list[str]
    headers: list[str]


@dataclass(frozen=True)
class Bar:
    """What a count may be, and what it is to become."""

    what: str
    found: float
    bar: float
    goal: float | None = None
    least: bool = False
    found_in: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the count is as it should be."""
        return self.found >= self.bar if self.least else self.found <= self.bar

    def __str__(self) -> str:
        how = "at least" if self.least else "at most"
        goal = "" if self.goal in (None, self.bar) else f" (goal: {self.goal:,})"
        line = f"{self.found:>8,}  {self.what}: {how} {self.bar:,}{goal}"
        return line if self.holds else "\n".join([f"{line}  <-- not so", *self.found_in])


def _forwards(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that a method does is to call a method of something that its object holds."""
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    if function.name.startswith("__") or re.search(r"property|\.setter", decorators):
        return False
    body = function.body[1:] if ast.get_docstring(function) else function.body
    match body:
        case [ast.Return(value=ast.Await(value=call)) | ast.Expr(value=ast.Await(value=call))]:
            pass
        case [ast.Return(value=call) | ast.Expr(value=call)]:
            pass
        case _:
            return False
    return isinstance(call, ast.Call) and bool(
        re.fullmatch(r"self(\.\w+){2,}", ast.unparse(call.func))
    )


def _headers(text: str) -> Iterator[str]:
    """Yield the first lines of comments at the left margin, with empty lines around them."""
    before, opened = "", ""
    for line in text.splitlines():
        if line.startswith("#"):
            opened = opened or (line if not before else "")
        else:
            if opened and not line:
                yield opened
            opened = ""
        before = line


def counted(path: Path) -> File:
    """Count a file's lines."""
    text = path.read_text()
    docstrings: set[int] = set()
    imports: set[int] = set()
    functions = classes = comments = 0
    forwarders = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.Import() | ast.ImportFrom():
                imports.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions += 1
            case ast.ClassDef(name=name, body=body):
                classes += 1
                methods = [m for m in body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
                forwarders += [f"{name}.{each.name}" for each in methods if _forwards(each)]
    code: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                comments += 1
            elif token.type not in BLANK:
                code.update(range(token.start[0], token.end[0] + 1))
    return File(
        lines=len(text.splitlines()),
        code=len(code - docstrings),
        comments=comments,
        imports=len(imports),
        functions=functions,
        classes=classes,
        forwarders=forwarders,
        headers=list(_headers(text)),
    )


def _wrong_imports() -> list[str]:
    """Return imports that go up, or without which there would be no circle."""
    graph = imports_of(PSNB, PACKAGE.name)
    up = arrows_up(graph, contract("layers")["layers"], f"psnb.{PACKAGE.name}")
    return [*up, *(" -> ".join(each) for each in circles(graph, f"psnb.{PACKAGE.name}"))]


def bars() -> list[Bar]:
    """Count the package, and return the counts with what they may be."""
    paths = sorted(PACKAGE.rglob("*.py"))
    files = {path.relative_to(PACKAGE).as_posix(): counted(path) for path in paths}
    every = files.values()
    code = sum(each.code for each in every)
    comments = sum(each.comments for each in every)
    folders = Counter(name.rpartition("/")[0] for name in files)
    fullest, most = folders.most_common(1)[0]
    top = {name.split("/")[0] for name in files} - {"__init__.py"}
    long = [name for name, each in files.items() if each.lines > LONGEST]
    unnamed = [f"  {n}: {files[n].lines}" for n in long if n not in LONGER]
    stale = [f"  {name}" for name in LONGER if name not in long]
    headed = [f"  {n}: {len(f.headers)}" for n, f in files.items() if len(f.headers) > HEADERS]
    forwarders = [f"  {name}: {method}" for name, f in files.items() for method in f.forwarders]
    wrong = [f"  {each}" for each in _wrong_imports()]
    return [
        Bar("packages and modules at the top", len(top), 20),
        Bar(f"files in a folder ({fullest})", most, 24),
        Bar("lines of code", code, 59_302, goal=44_000),
        Bar("functions", sum(each.functions for each in every), 6_017, goal=4_600),
        Bar(f"files over {LONGEST} lines", len(long), len(LONGER)),
        Bar("of them without a reason in LONGER", len(unnamed), 0, found_in=unnamed),
        Bar("names in LONGER of files that are not over it", len(stale), 0, found_in=stale),
        Bar(
            f"files with more than {HEADERS} section headers",
            len(headed),
            0,
            found_in=headed,
        ),
        Bar("methods that only pass a call on", len(forwarders), 46, 46, found_in=forwarders),
        Bar("imports that go up or round", len(wrong), 0, found_in=wrong),
        Bar(
            "% of the code are imports",
            round(100 * sum(e.imports for e in every) / code, 1),
            10.9,
            goal=9,
        ),
        Bar(
            "comments in 1,000 lines",
            round(1000 * comments / (code + comments)),
            43,
            goal=45,
            least=True,
        ),
    ]


def main() -> int:
    """Print the counts; return how many are not as they should be."""
    found = bars()
    for bar in found:
        print(bar)
    return sum(not bar.holds for bar in found)


if __name__ == "__main__":
    sys.exit(main())
