"""What CONTRIBUTING.md, comments and docstrings of psnb name in backticks exists.

In Python, single backticks are for what psnb has, Python, or a module that can be imported; what
others have, or what is no name, is in double ones, at which this does not look.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "psnb").rglob("*.py"))
DOCUMENTS = [ROOT / "CONTRIBUTING.md", *SOURCES]

_QUOTED = re.compile(r"(?<![`\w:])`([^`\n]+)`(?!`)")
_PATH = re.compile(r"\.?[\w*-]+(/[\w.*-]+)*(/|\.(py|md|toml|json|ts|yml|css))")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of a file's docstrings and comments, or all that is not code."""
    text = path.read_text()
    if path.suffix == ".md":
        fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
        yield 1, fenced.sub(lambda found: "\n" * found[0].count("\n"), text)
        return
    for node in ast.walk(_tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def _quoted(path: Path) -> list[tuple[int, str]]:
    """Return line and content of what is in single backticks."""
    result = []
    for first, text in _texts(path):
        for found in _QUOTED.finditer(text):
            result.append((first + text.count("\n", 0, found.start()), found[1]))
    return result


@cache
def _files() -> list[str]:
    """Return the paths of the repository's files and folders."""
    folders = [ROOT / name for name in ("psnb", "tests", "docs", "extension/src", "notebooks")]
    found = [*ROOT.iterdir(), *folders, *(path for each in folders for path in each.rglob("*"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _names_in(tree: ast.AST) -> set[str]:
    """Return the names that code defines, is given, imports or uses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.keyword(arg=str(name)) | ast.MatchAs(name=str(name)):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.update([*name.split("."), *([other] if other else [])])
            case ast.Constant(value=str(name)) if name.isidentifier():
                found.add(name)  # of slots, fields of messages, options
    return found


@cache
def _names_of(path: Path) -> set[str]:
    return _names_in(_tree(path)) if path.suffix == ".py" else set()


class _Index:
    """What psnb defines: its modules, what is in each, and what is in each class."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self.within: defaultdict[str, set[str]] = defaultdict(set)
        self.bases: defaultdict[str, set[str]] = defaultdict(set)
        for path in SOURCES:
            parts = _module(path).split(".")
            self.within[_module(path)] |= _names_of(path)
            self.within[parts[-1]] |= _names_of(path)
            for number in range(1, len(parts)):
                self.within[".".join(parts[:number])].add(parts[number])
                self.within[parts[number - 1]].add(parts[number])
            tree = _tree(path)
            for statement in tree.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    self.defined |= _names_in(statement)  # a constant
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.defined.add(node.name)
                    if not node.name.startswith("_") or node.name == "__init__":
                        self.defined |= {each.arg for each in node.args.args + node.args.kwonlyargs}
                elif isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).split("[")[0] for base in node.bases]
                    self.bases[node.name] |= {base.rpartition(".")[2] for base in bases}
                    self.within[node.name] |= _names_in(node)
        self.defined |= set(self.within)

    def has(self, owner: str, name: str) -> bool:
        """Whether a module or class has a name, or may inherit it from what is not psnb's."""
        if owner not in self.within:
            return True
        return name in self.within[owner] or any(self.has(base, name) for base in self.bases[owner])


@cache
def _index() -> _Index:
    return _Index()


def _exists(quoted: str, path: Path) -> bool:
    if _PATH.fullmatch(quoted):
        pattern = re.escape(quoted.strip("/")).replace(r"\*", "[^/]*")
        return any(re.search(rf"(^|/){pattern}$", each) for each in _files())
    if not _NAME.fullmatch(quoted) or keyword.iskeyword(quoted):
        return True  # other code
    index, (owner, _, name) = _index(), quoted.rpartition(".")
    first = quoted.split(".")[0]
    if not owner and (name in index.defined or name in _names_of(path) or hasattr(builtins, name)):
        return True
    if first == "psnb" and quoted in index.within:
        return True
    for holder in (owner, owner.rpartition(".")[2]):
        if holder in index.within and index.has(holder, name):
            return True
    if first == "psnb":
        return False
    # A variable of the file, or what is imported from others.
    in_code = _names_of(path) if path.suffix == ".py" else set().union(*map(_names_of, SOURCES))
    if owner and owner.rpartition(".")[2] not in index.within and first in in_code:
        return True
    return find_spec(first) is not None


def _found(wrong: Callable[[str, Path], bool]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in DOCUMENTS
        for line, name in _quoted(path)
        if wrong(name, path)
    ]


def test_names_in_backticks_exist() -> None:
    assert _found(lambda name, path: not _exists(name, path)) == []


def test_no_text_refers_to_the_file_in_which_it_is() -> None:
    assert _found(lambda name, path: name == _module(path)) == []


@pytest.mark.parametrize(
    ("quoted", "there"),
    [
        ("client/commit.py", True),
        ("nodes/*.py", True),
        ("client/commits.py", False),
        ("psnb._src.client.commit", True),
        ("psnb._src.client.table_writing", False),
        ("CommitLog", True),
        ("Copy", False),
        ("CommitLog.prepare", True),
        ("CommitLog.prepare_it", False),
        ("checks.positive_integer", False),
        ("threading.Thread", True),
        ("x -= mean", True),
    ],
)
def test_names_that_are_gone_are_found(quoted: str, there: bool) -> None:
    assert _exists(quoted, Path("README.md")) == there


def test_what_the_site_is_built_with_imports_what_psnb_has() -> None:
    # Sphinx is not there to build it in each run of the tests.
    imported = [
        (node.module, alias.name)
        for path in (ROOT / "docs" / "_ext").glob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psnb")
        for alias in node.names
    ]
    assert imported
    for module, name in imported:
        assert hasattr(import_module(module), name), f"{module} has no {name}"
