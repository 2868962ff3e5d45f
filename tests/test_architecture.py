"""The shape of the package: names, rooms and doors (README, "Contributing")."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import psnb

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "psnb"
FILES = sorted(PACKAGE.rglob("*.py"))

PUBLIC = [
    *("FTRL", "SGD", "Adagrad", "Adam", "Momentum", "RMSProp"),
    *("CosineDecay", "ExponentialDecay", "PiecewiseConstant", "PolynomialDecay"),
    *("Schedule", "Warmup"),
    *("Admission", "Always", "CountFilter", "CtrAccessor", "Probability"),
    *("EmbeddingStatistics", "RowStatistics", "StalenessStatistics"),
    *("Async", "BoundedStaleness", "Geo", "Sync"),
    *("CheckpointStatistics", "Failure", "ServerStatistics"),
    *("CheckpointManager", "ClosureStatus", "ClusterCoordinator", "Constant"),
    *("Embedding", "Event", "EventKind", "FixedShards", "Initializer", "InputContext"),
    *("MaxSize", "MetricStatistics", "MinSize", "Normal"),
    *("Optimizer", "ParameterServerStrategy", "PerWorkerValues", "RemoteValue", "Statistics"),
    *("Uniform", "Variable", "WorkerContext", "WorkerStatistics"),
    *(
        "as_completed",
        "connect",
        "data",
        "errors",
        "local_cluster",
        "prefetch",
        "pull",
        "push",
        "report",
        "worker_context",
    ),
    "worker_index",
]

PURE = [
    *("coordinator/queue.py", "coordinator/closure.py", "coordinator/remote_value.py"),
    *("coordinator/waiting.py", "coordinator/dependents.py", "coordinator/call.py"),
    *("coordinator/options.py", "coordinator/start_delay.py", "coordinator/as_completed.py"),
    *("coordinator/structure.py", "coordinator/status.py", "server/tables.py", "server/rows.py"),
    *("coordinator/lane_state.py", "coordinator/timeouts.py", "coordinator/backoff.py"),
    *("coordinator/load.py", "coordinator/duration.py", "coordinator/generation.py"),
    *("coordinator/settings.py", "coordinator/gate.py", "coordinator/round_gate.py"),
    *("coordinator/staleness_gate.py", "coordinator/flush_gate.py"),
    *("coordinator/leases.py", "coordinator/lease_desk.py", "coordinator/epoch.py"),
    *("coordinator/pinned.py", "runtime/leasing.py"),
    *("modes.py", "monitor/staleness.py", "server/duplicates.py", "server/rounds.py"),
    *("monitor/backlog.py", "monitor/portions.py", "monitor/hub/messages.py"),
    *("monitor/outline.py", "monitor/plain.py", "excerpt.py"),
    *(
        "monitor/summary.py",
        "monitor/sparkline.py",
        "monitor/hub/sources.py",
        "monitor/hub/commands.py",
        "monitor/hub/allowance.py",
    ),
    *("coordinator/workload.py", "demand.py", "monitor/events.py"),
    *("monitor/protocol.py", "monitor/feed.py", "monitor/rate.py", "monitor/failures.py"),
    *("monitor/timeline.py", "monitor/source.py", "monitor/commands.py", "server/traffic.py"),
    *(
        "server/kernels.py",
        "server/table.py",
        "server/dense.py",
        "server/sparse.py",
        "server/initializers.py",
        "server/updater.py",
    ),
    *(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("server/optimizers/*.py")),
    *(str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("data/formats/*.py")),
    *("parameters/gradients.py", "parameters/local_tables.py"),
    *("server/admission.py", "server/ctr.py", "parameters/bags.py"),
    *("parameters/table_statistics.py", "watermark.py", "placement/layout.py"),
    *("placement/mending.py", "placement/holding.py", "parameters/commit.py"),
    *("coordinator/fates.py", "server/commits.py", "server/transfer.py", "server/snapshot.py"),
    *("placement/balance.py", "strategy/tables.py", "server/shard.py", "server/reply.py"),
    *("parameters/partition.py", "parameters/arguments.py", "errors.py"),
    *("checkpoint/store.py", "checkpoint/directory.py", "checkpoint/lock.py"),
    *("checkpoint/manifest.py", "checkpoint/stored.py", "server/checks.py", "server/expecting.py"),
    *("interrupts.py", "locks.py", "answer.py", "neighbours.py"),
]


def imported(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module


def test_the_public_names_are_these() -> None:
    assert sorted(psnb.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert hasattr(psnb, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_each_other_through_their_doors(path: Path) -> None:
    own_room = ["psnb", *path.relative_to(PACKAGE).parts[:-1]]
    for module in imported(path):
        parts = module.split(".")
        # A room within a room may use what is around it.
        around = parts[:-1] == own_room[: len(parts) - 1]
        inside = parts[: len(own_room)] == own_room
        if parts[0] == "psnb" and len(parts) > 2 and not inside and not around:
            # The command line is the demo's front: it imports it when asked.
            assert (path.name, parts[1]) == ("cli.py", "demo"), f"{path} imports {module}"


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_neither_dask_nor_jupyter(name: str) -> None:
    foreign = {"dask", "distributed", "tornado", "ipywidgets", "anywidget", "IPython", "asyncio"}
    assert not {module.split(".")[0] for module in imported(PACKAGE / name)} & foreign


def test_importing_psnb_imports_nothing_of_a_notebook_nor_jax() -> None:
    heavy = ["ipywidgets", "anywidget", "jupyterlab", "matplotlib", "IPython", "jax", "pandas"]
    assert _imported_by("from psnb import *", heavy) == "[]"


def test_the_extension_of_the_jupyter_server_imports_neither_dask_nor_numba() -> None:
    code = "import psnb.monitor.hub.handlers, psnb.monitor.hub.kernels"
    assert _imported_by(code, ["dask", "distributed", "numba", "anywidget", "matplotlib"]) == "[]"


def _imported_by(code: str, modules: list[str]) -> str:
    code = f"{code}; import sys; print([m for m in {modules} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_each_public_name_comes_from_the_room_that_type_checkers_see() -> None:
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psnb."):
            room = importlib.import_module(str(node.module))
            for alias in node.names:
                assert getattr(psnb, alias.name) is getattr(room, alias.name)


@pytest.mark.slow
def test_the_code_in_the_readme_prints_what_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    said = text.split("```text\n", 1)[1].split("```", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", code + "strategy.close(); client.close()"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The loss differs in its last digits: updates arrive in another order each time.
    assert [line.split("; loss")[0] for line in done.stdout.splitlines()] == [
        line.split("; loss")[0] for line in said.splitlines()
    ]
