"""Changes one line of psnb at a time, and asks which test notices: ``python -m tests.mutants``.

What a suite that was made smaller no longer guards shows here: the same mutants are given to both,
by the list that ``--list`` writes. A mutant is a condition turned round, a comparison off by one,
a lock or an awaited call left out, or a check removed. The nearest tests run first (those of its
room), then the integration tests that reach it, until one is red or the time is over.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOMS = {
    "commits": (
        [
            *("server/commit_log.py", "client/commit.py", "client/updates.py"),
            *("client/numbering.py", "coordinator/workers/resolve.py"),
        ],
        ["server", "client", "coordinator", "model"],
        ["commit*", "exactly*", "mode_faults", "sync*", "worker_faults", "server_faults"],
    ),
    "queue": (
        ["coordinator/queue.py", "coordinator/scheduling/*.py"],
        ["coordinator", "model"],
        ["scheduling", "semantics", "pause", "cancelling", "staleness", "sync*", "worker_faults"],
    ),
    "leases": (
        [
            *("coordinator/scheduling/*lease*.py", "coordinator/datasets/*.py"),
            *("worker/leas*.py", "worker/taken.py"),
        ],
        ["coordinator", "worker"],
        ["leases", "sync_epochs", "resuming", "resumed_trainers", "in_memory*", "per_worker"],
    ),
    "server": (
        ["server/*.py", "server/tables/*.py"],
        ["server", "client", "checkpoint"],
        ["server_faults", "replicas", "optimizers", "ctr", "states", "recovery", "rebalance"],
    ),
    "checkpoint": (
        ["checkpoint/*.py"],
        ["checkpoint"],
        ["saving", "writing", "deltas", "hostile*", "recovery", "resuming", "s3"],
    ),
    "data": (
        ["data/*.py", "data/*/*.py"],
        ["data"],
        ["leases", "in_memory*", "per_worker", "trainer"],
    ),
    "models": (
        ["models/*.py", "models/*/*.py"],
        ["models"],
        ["torch*", "jax*", "keras*", "export", "section"],
    ),
}
"""Which files, the tests of their rooms, and the integration tests that reach them."""


@dataclass(frozen=True)
class Mutant:
    """One line of one file, and what is put in its place; ``line`` counts from 1."""

    room: str
    kind: str
    file: str
    line: int
    before: str
    after: str


def _mutants_of(room: str, file: str, source: str) -> Iterator[Mutant]:
    lines = source.splitlines()

    def mutant(kind: str, node: ast.expr | ast.stmt, after: str) -> Mutant:
        before = lines[node.lineno - 1]
        return Mutant(room, kind, file, node.lineno, before, after)

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt | ast.expr) or node.end_lineno is None:
            continue
        line = lines[node.lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        match node:
            case ast.If(test=test, body=[ast.Raise()], orelse=[]) if test.lineno == test.end_lineno:
                yield mutant("check removed", node, f"{indent}if False:")
            case ast.If(test=test) if test.lineno == test.end_lineno and "elif" not in line:
                turned = f"{indent}if not ({ast.unparse(test)}):"
                if line.rstrip().endswith(":"):
                    yield mutant("condition turned round", node, turned)
            case ast.With(items=[item]) | ast.AsyncWith(items=[item]) if re.search(
                r"lock|condition|changing", ast.unparse(item.context_expr), re.IGNORECASE
            ):
                if item.optional_vars is None and line.rstrip().endswith(":"):
                    yield mutant("lock left out", node, f"{indent}if True:")
            case ast.Expr(value=ast.Await()) if node.lineno == node.end_lineno:
                yield mutant("awaited call left out", node, f"{indent}pass")
            case ast.Compare(ops=[op]) if node.lineno == node.end_lineno and isinstance(
                op, ast.Lt | ast.LtE | ast.Gt | ast.GtE
            ):
                other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
                new = ast.Compare(node.left, [other[type(op)]()], node.comparators)
                text = line[node.col_offset : node.end_col_offset]
                after = line[: node.col_offset] + ast.unparse(new) + line[node.end_col_offset :]
                if text.isascii() and line.isascii():
                    yield mutant("off by one", node, after)


def chosen(root: Path, count: int, seed: int) -> list[Mutant]:
    """Choose mutants at random, as many of each group of rooms as of another."""
    rng = random.Random(seed)
    package = root / "psnb" / "_src"
    result: list[Mutant] = []
    groups: dict[str, list[list[Mutant]]] = {}
    for room, (patterns, _, _) in ROOMS.items():
        found = {pattern: list(package.glob(pattern)) for pattern in patterns}
        if missing := [pattern for pattern, files in found.items() if not files]:
            raise LookupError(f"{room}: no file is {', '.join(missing)}")
        files = sorted({file for files in found.values() for file in files})
        kinds: dict[str, list[Mutant]] = {}
        for file in files:
            name = str(file.relative_to(root))
            for each in _mutants_of(room, name, file.read_text()):
                kinds.setdefault(each.kind, []).append(each)
        groups[room] = [kinds[kind] for kind in sorted(kinds)]
    while len(result) < count:
        for each in groups.values():
            kind = rng.choice(each)  # so that rare kinds are there, too
            mutant = rng.choice(kind)
            if len(result) < count and mutant not in result:
                result.append(mutant)
    return result


def apply(mutant: Mutant, root: Path) -> None:
    """Change the line; it may have moved, but must be there."""
    path = root / mutant.file
    lines = path.read_text().splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.rstrip("\n") == mutant.before]
    if not found:
        raise LookupError(f"{mutant.file}: no line {mutant.before!r}")
    at = min(found, key=lambda i: abs(i + 1 - mutant.line))
    lines[at] = mutant.after + "\n"
    path.write_text("".join(lines))


def copy(root: Path, to: Path) -> None:
    """Copy what tests need of a checkout: what git knows, and the front end."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    built = [*(root / "psnb").rglob("static/*"), *(root / "psnb/labextension").rglob("*")]
    for each in [*map(os.fsdecode, files.split(b"\0")), *(str(b.relative_to(root)) for b in built)]:
        if each and (root / each).is_file():
            (to / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / each, to / each)


def run(root: Path, arguments: list[str], seconds: float) -> tuple[str, str]:
    """Run pytest until a test is red; return ``red``, ``green`` or ``time`` and the test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "time", ""
    if process.returncode in (0, 5):
        return "green", ""
    red = re.search(r"^(?:FAILED|ERROR) (\S+)", out, re.MULTILINE)
    return "red", red[1] if red else out.strip().splitlines()[-1]


def verdict(mutant: Mutant, root: Path, options: list[str], seconds: float) -> dict[str, object]:
    """Return which test of a suite kills a mutant, or that none did in its time."""
    _, near, far = ROOMS[mutant.room]
    own = Path(mutant.file).parts[2]  # its room's tests before those of others
    near = sorted(near, key=lambda name: name != own)
    begin = time.monotonic()
    result, test = "green", ""
    with tempfile.TemporaryDirectory(prefix="psnb-mutant-") as name:
        folder = Path(name)
        copy(root, folder)
        apply(mutant, folder)
        integration = folder / "tests" / "integration"
        files = [str(f) for each in far for f in sorted(integration.rglob(f"test_{each}.py"))]
        for paths in ([f"tests/{each}" for each in near], list(dict.fromkeys(files))):
            left = seconds - (time.monotonic() - begin)
            if result == "green" and left > 0:
                result, test = run(folder, [*options, *paths], left)
    return {"result": result, "test": test, "seconds": round(time.monotonic() - begin)}


def main() -> None:
    """Run the mutants of a list, or of a seed, against the suite of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--list", type=Path, help="read the mutants from here, or write them")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants, from 0")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each of them")
    parser.add_argument("--out", type=Path, help="a JSON line for each")
    parser.add_argument("options", nargs="*", help="of pytest, after --")
    given = parser.parse_args()
    if given.list and given.list.exists():
        mutants = [Mutant(**each) for each in json.loads(given.list.read_text())]
    else:
        mutants = chosen(given.root, given.count, given.seed)
        if given.list:
            given.list.write_text(json.dumps([asdict(each) for each in mutants], indent=1))
    numbers = range(len(mutants)) if given.only is None else given.only
    for number in numbers:
        mutant = mutants[number]
        found = verdict(mutant, given.root, given.options, given.seconds)
        print(f"{number:3} {mutant.kind:22} {mutant.file}:{mutant.line} {found}", flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps({"number": number, **asdict(mutant), **found}) + "\n")


if __name__ == "__main__":
    main()
