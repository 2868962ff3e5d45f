"""The shape of the package: names, rooms and doors (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from IPython.core.completer import IPCompleter, provisionalcompleter

import psnb
from psnb import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "psnb"
PRIVATE = PACKAGE / "_src"
FILES = sorted(PACKAGE.rglob("*.py"))

PUBLIC = [
    *("FTRL", "SGD", "Adagrad", "Adam", "Momentum", "RMSProp"),
    *("CosineDecay", "ExponentialDecay", "PiecewiseConstant", "PolynomialDecay"),
    *("Schedule", "Warmup"),
    *("Admission", "Always", "CountFilter", "CtrAccessor", "Probability"),
    *("EmbeddingStatistics", "RowStatistics", "StalenessStatistics"),
    *("Async", "BoundedStaleness", "Geo", "Sync"),
    *("Attached", "StoredStrategies", "StoredStrategy"),
    *("CheckpointStatistics", "Failure", "PhaseStatistics", "ServerStatistics"),
    *("LoadedModel", "export", "load_model"),
    *("CheckpointManager", "ClosureStatus", "ClusterCoordinator", "Constant"),
    *("Embedding", "Event", "EventKind", "FixedShards", "Initializer", "InputContext"),
    *("MaxSize", "MetricStatistics", "MinSize", "Normal"),
    *("Optimizer", "ParameterServerStrategy", "PerWorkerValues", "RemoteValue", "Statistics"),
    *("Resumed", "resume"),
    *("Uniform", "Variable", "WorkerContext", "WorkerStatistics"),
    *(
        "as_completed",
        "attach",
        "checkpoint",
        "connect",
        "data",
        "errors",
        "local_cluster",
        "metrics",
        "prefetch",
        "pull",
        "push",
        "report",
        "worker_context",
    ),
    "worker_index",
    *("Callback", "DeviceWorker", "Downpour", "EpochRow", "Hogwild", "Section"),
    *("CSVLog", "EarlyStopping", "JSONLinesLog", "LearningRateScheduler", "TensorBoard"),
    *("Trainer", "TrainingHistory", "TrainingSnapshot"),
]

FOREIGN = {
    *("dask", "distributed", "tornado", "asyncio"),
    *("ipywidgets", "anywidget", "traitlets", "IPython", "jupyter_core", "jupyter_server"),
    "psnb._src.dask_internals",
}
"""What pure modules do not import: clusters, event loops and notebooks."""

NOT_PURE = [
    *("cluster/cluster", "cluster/local", "cluster/local_client", "cluster/protection"),
    *("cluster/resizing", "coordinator/resumed"),
    *(
        "cluster/scaling",
        "cluster/start_local",
        "coordinator/closures/awaiting",
        "coordinator/steps",
    ),
    *("coordinator/coordinator_view", "coordinator/workers/membership"),
    *("coordinator/workers/worker_connection", "coordinator/workers/worker_link", "demo/run"),
    *("dask_internals/__init__", "dask_internals/additions", "dask_internals/borrowed"),
    *("dask_internals/local_nodes", "dask_internals/reaching", "jupyter_internals"),
    *("monitor/hub/__init__", "monitor/hub/handlers", "monitor/hub/hub"),
    *("monitor/hub/panel", "monitor/hub/schedulers"),
    *("monitor/served/links", "monitor/served/scheduler_link"),
    *("monitor/shown/display", "monitor/shown/notebook_line", "monitor/shown/saved"),
    "monitor/shown/widget",
    *("parameters/comm_server_client", "parameters/control_connection"),
    "parameters/request_batch",
    *("parameters/server_connection", "parameters/server_lives"),
    *("placement/layout_cache", "placement/layout_registry"),
    *("runtime/interrupt", "runtime/mail", "runtime/notebook_link", "runtime/notice"),
    "runtime/plugin",
    *("runtime/result_sender", "runtime/session", "runtime/uploaded_module"),
    *("server/host", "server/serving"),
    "strategy/departures",
    *("strategy/core", "strategy/rebalancing", "strategy/reconciler", "strategy/recovery"),
    *("strategy/server_control", "strategy/servers", "strategy/strategy"),
    *("strategy/ownership", "strategy/scheduler_life", "strategy/stored_strategies"),
    *("coordinator/attaching", "strategy/taking_over", "strategy/watched_server"),
    *("threads/aside", "transport/arena", "transport/connecting", "transport/stream"),
]
"""The modules that may; all others are pure, and are tested without a cluster."""

INTERNALS = [
    path for path in FILES if "dask_internals" in path.parts or path.stem == "jupyter_internals"
]
"""Where parts of Dask and Jupyter are touched that are not documented."""

INTERNAL_MODULES = ("dask.", "distributed.", "ipykernel", "jupyter_server.services")
"""Modules of which what is documented is exported elsewhere."""

INTERNAL_PARTS = {
    *("asyncio_loop", "client_comms", "connection_args", "dont_reply", "extensions", "handlers"),
    *("http_application", "http_server", "idle_since", "memory_manager", "periodic_callbacks"),
    *("plugins", "pre_spawn_env", "rpc", "scheduler_comm", "stream_comms", "stream_handlers"),
    *("get_connection_args", "handle_msg", "kernel_info", "provisioner"),
}
"""Attributes of anything, of which psnb has none of its own."""

CLIENTS_PARTS = {"loop", "scheduler", "status"}
"""Attributes of what is called client or worker."""

FRAMEWORKS = {"jax.py", "keras.py", "torch.py"}
"""Front doors of frameworks; nothing of psnb imports them, or the framework for them."""

KNOWN_PRIVATE = {
    *("_replace", "_fields", "_asdict"),  # of named tuples, documented
    "_getframe",  # of sys
    "_schema",  # of operators of PyTorch: whether they change what they are given
    "_ops",  # of torch: what an operator is
    "_version",  # of tensors: there is no other count of their changes
    *("_strip_protocol", "_get_kwargs_from_urls", "_parent"),  # of fsspec
}
"""Private names that psnb does not define and uses all the same."""


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the names of the modules that a file imports; many tests ask."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
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


MODULES = ["checkpoint", "data", "demo", "errors", "jax", "keras", "metrics", "torch"]
"""The public modules."""


@pytest.mark.parametrize("jedi", [False, True])
@pytest.mark.parametrize("name", ["psnb", *(f"psnb.{each}" for each in MODULES)])
def test_completion_in_a_notebook_offers_the_public_names_only(name: str, jedi: bool) -> None:
    for each in MODULES:
        importlib.import_module(f"psnb.{each}")
    module = importlib.import_module(name)
    completer = IPCompleter(namespace={"psnb": psnb}, use_jedi=jedi)
    with provisionalcompleter():
        offered = {
            each.text.lstrip(".") for each in completer.completions(f"{name}.", len(name) + 1)
        }
    public = {each.__name__ for each in vars(errors).values() if inspect.isclass(each)}
    if name != "psnb.errors":
        public = {*module.__all__, *(MODULES if name == "psnb" else ())}
    assert offered == public


def test_frameworks_are_offered_once_they_are_imported() -> None:
    code = "import psnb; print('jax' in dir(psnb)); import psnb.jax; print('jax' in dir(psnb))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_what_is_public_is_nine_modules_and_all_else_is_private_by_its_path() -> None:
    found = {path.relative_to(PACKAGE).parts[0] for path in FILES}
    assert found == {
        "__init__.py",
        "_src",
        *FRAMEWORKS,
        "checkpoint.py",
        "data.py",
        "demo.py",
        "errors.py",
        "metrics.py",
    }


def _packages(name: str) -> list[str]:
    """Return the packages of `psnb` around a module or in it, from the outermost."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _rooms(path: Path) -> list[str]:
    """Return the packages around a file, from the outermost."""
    return _packages(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_each_other_through_their_doors(path: Path) -> None:
    around = {"psnb._src", *_rooms(path)}
    for module in imported(path):
        if module.split(".")[0] != "psnb" or module in ("psnb", "psnb.errors", "psnb.data"):
            continue
        # The command line is the demo's front: it imports it when asked.
        demo = path.name == "cli.py" and module.startswith("psnb._src.demo.")
        assert demo or _packages(module)[-1] in around, f"{path} imports {module}"


def test_rooms_depend_on_each_other_without_circles() -> None:
    uses: dict[str, set[str]] = {}
    for path in FILES:
        for module in imported(path):
            found = (ROOT / Path(*module.split("."))).with_suffix(".py")
            room = _packages(module)[-1] if found.exists() and "." in module else module
            for own in _rooms(path):
                # A room within a room may use what is around it, and is what its door opens to.
                nested = f"{room}.".startswith(f"{own}.") or f"{own}.".startswith(f"{room}.")
                if module.startswith("psnb._src.") and not nested:
                    uses.setdefault(own, set()).add(room)
    while ends := {room for each in uses.values() for room in each} - uses.keys() | {
        room for room, each in uses.items() if not each
    }:
        uses = {room: each - ends for room, each in uses.items() if room not in ends}
    assert not uses


def test_a_name_means_one_thing() -> None:
    names: dict[str, list[str]] = {}
    for path in FILES:
        if path.parent != PACKAGE and path.name != "__init__.py":
            names.setdefault(path.stem, []).append(str(path))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name.lstrip("_"), []).append(str(path))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}


def test_modules_that_import_dask_or_jupyter_are_these() -> None:
    found = [
        str(path.relative_to(PRIVATE).with_suffix(""))
        for path in FILES
        if FOREIGN & {each for module in imported(path) for each in (module, *_packages(module))}
    ]
    assert found == sorted(NOT_PURE)


def _own_private(path: Path) -> Iterator[str]:
    """Yield the names that a file defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=names)):
                yield from (name.value for name in names if isinstance(name, ast.Constant))
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


@cache
def own_private() -> set[str]:
    """Return the names that psnb defines; not when this is imported, which all processes do."""
    return {name for path in FILES if path not in INTERNALS for name in _own_private(path)}


def _touched(code: str) -> Iterator[str]:
    """Yield what code touches of Dask and Jupyter that is not documented."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
                yield from (each for each in modules if each.startswith(INTERNAL_MODULES))
            case ast.ImportFrom(module=str(module)) if module.startswith(INTERNAL_MODULES):
                yield module
            case ast.Attribute(value=owner, attr=name):
                of = ast.unparse(owner).rpartition(".")[2].lstrip("_")
                if name in INTERNAL_PARTS or _is_private(name):
                    yield name
                elif of in ("client", "worker") and name in CLIENTS_PARTS:
                    yield f"{of}.{name}"
            case ast.Call(args=[_, ast.Constant(value=str(name)), *_]) if _is_private(name):
                yield name  # getattr, hasattr, setattr


def _is_private(name: str) -> bool:
    ours = name.startswith("__") or name in own_private() or name in KNOWN_PRIVATE
    return name.startswith("_") and not ours


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_internals_of_dask_and_jupyter_are_touched_in_their_rooms_only(path: Path) -> None:
    assert path in INTERNALS or list(_touched(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "from distributed.core import Status",
        "import distributed.comm",
        "import ipykernel",
        "self._worker.handlers['mine'] = function",
        "await self._client.scheduler.identity()",
        "cluster._adaptive",
        "getattr(comm, '_reply_subshell_for', None)",
    ],
)
def test_what_touches_internals_is_found(code: str) -> None:
    assert len(list(_touched(code))) == 1


def test_the_rooms_of_internals_know_nothing_of_psnb() -> None:
    known = {module for path in INTERNALS for module in imported(path) if "psnb" in module}
    assert {module for module in known if "dask_internals" not in module} == set()


def test_importing_psnb_imports_nothing_of_a_notebook_nor_a_framework() -> None:
    heavy = [
        "ipywidgets",
        "anywidget",
        "jupyterlab",
        "matplotlib",
        "IPython",
        "jax",
        "torch",
        "pandas",
    ]
    assert _imported_by("from psnb import *", heavy) == "[]"


@pytest.mark.parametrize(("door", "others"), [("jax", ["torch"]), ("torch", ["jax"])])
def test_the_door_of_a_framework_imports_no_other_one(door: str, others: list[str]) -> None:
    assert _imported_by(f"import psnb; psnb.{door}", others) == "[]"


def test_nothing_else_imports_what_is_for_a_framework() -> None:
    for door in FRAMEWORKS:
        framework = door.removesuffix(".py")
        private = {framework, f"psnb.{framework}", f"psnb._src.{framework}_models"}
        for path in FILES:
            rooms = {f"{framework}_models", f"{framework}_programs"}
            own = path.name == door or bool(rooms & {*path.parts})
            keras = framework in ("jax", "torch") and "keras_models" in path.parts
            demo = framework == "jax" and "demo" in path.parts
            if not own and not demo and not keras:
                found = {name for module in imported(path) for name in (module, *_packages(module))}
                assert not found & private, path


def test_the_extension_of_the_jupyter_server_imports_neither_dask_nor_numba() -> None:
    code = "import psnb._src.monitor.hub.handlers, psnb._src.monitor.hub.jupyter_kernels"
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


def _undocumented(path: Path) -> Iterator[str]:
    module = importlib.import_module(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    )
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(found):
            parts = [each for each in vars(found) if not each.startswith("_")]
            members = [getattr(found, each) for each in parts]
            # What overrides something has its text; fields are told of by the class.
            yield from (
                f"{name}.{part}"
                for part, member in zip(parts, members, strict=True)
                if isinstance(member, property) or inspect.isroutine(member)
                if inspect.getdoc(member) is None
            )
        if (inspect.isclass(found) or inspect.isfunction(found)) and not found.__doc__:
            yield name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_all_that_is_not_private_to_its_module_is_documented(path: Path) -> None:
    # ruff takes all below a folder with an underscore for private.
    assert list(_undocumented(path)) == []


@pytest.mark.slow
def test_the_code_in_the_readme_is_a_script_that_prints_what_the_readme_says(
    tmp_path: Path,
) -> None:
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    said = text.split("```text\n", 1)[1].split("```", 1)[0]
    (tmp_path / "readme.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "readme.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Updates arrive in another order each time, and on a busy machine one may be very late: the
    # loss differs, and so does the row that was trained, by less than a step.
    printed, trained, new = done.stdout.splitlines()
    summary, _, said_new = said.splitlines()
    assert printed.split("; loss")[0] == summary.split("; loss")[0]
    np.testing.assert_allclose(np.array(trained.strip("[] ").split(), float), 1, atol=0.3)
    assert new == said_new
