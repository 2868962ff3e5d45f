"""Counts of the package's files and lines, against what they should be at most or at least.

``python -m tests.house`` prints them. *Code* is a line with a token that is neither a comment nor
part of a docstring. Circles and layers are counted by import-linter (``make lint``).
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "psnb" / "_src"

BLANK = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


@dataclass
class Lines:
    """Numbers of the lines of a file, or of all."""

    code: int = 0
    imports: int = 0
    comments: int = 0
    code_of: dict[Path, int] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Count a file's lines."""
        docstrings: set[int] = set()
        imports: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
                case ast.Import() | ast.ImportFrom():
                    imports.update(range(node.lineno, (node.end_lineno or 0) + 1))
        code: set[int] = set()
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    self.comments += 1
                elif token.type not in BLANK and token.type != tokenize.ENCODING:
                    code.update(range(token.start[0], token.end[0] + 1))
        code -= docstrings
        self.code += len(code)
        self.imports += len(imports)
        self.code_of[path] = len(code)


def main() -> int:
    """Print the counts; return how many are not as they should be."""
    lines = Lines()
    for path in sorted(PACKAGE.rglob("*.py")):
        lines.add(path)
    largest = max(lines.code_of, key=lambda path: lines.code_of[path])
    folders = Counter(path.parent for path in lines.code_of)
    fullest, most = folders.most_common(1)[0]
    top = [
        path
        for path in PACKAGE.iterdir()
        if path.name[0] != "_" and (path.suffix == ".py" or path in folders)
    ]
    share = 100 * lines.imports / lines.code
    comments = 1000 * lines.comments / (lines.code + lines.comments)
    checks = [
        ("files", len(lines.code_of), "at most", 195),
        ("packages and modules at the top", len(top), "at most", 20),
        (f"files in a folder ({fullest.relative_to(PACKAGE)})", most, "at most", 24),
        ("lines of code", lines.code, "at most", 39_000),
        (f"in a file ({largest.relative_to(PACKAGE)})", lines.code_of[largest], "at most", 600),
        ("% of them imports", round(share, 1), "at most", 9),
        ("comments in 1,000 lines of code and comments", round(comments), "at least", 45),
    ]
    failed = 0
    for what, found, how, bar in checks:
        holds = found <= bar if how == "at most" else found >= bar
        failed += not holds
        print(f"{found:>8,}  {what}: {how} {bar:,}{'' if holds else '  <-- not so'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
