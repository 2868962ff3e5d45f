"""The shape of the package that import-linter cannot see (pyproject.toml has its contracts).

It counts imports within functions, and not those by a name in a string: these are counted here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import filter as matching
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pytest
from IPython.core.completer import IPCompleter, provisionalcompleter

import psnb
from psnb import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "psnb"
FILES = sorted(PACKAGE.rglob("*.py"))

PUBLIC = [
    *("FTRL", "SGD", "Adagrad", "Adam", "Lion", "Momentum", "RMSProp", "RowWiseAdagrad"),
    *("CosineDecay", "ExponentialDecay", "PiecewiseConstant", "PolynomialDecay"),
    *("Schedule", "Warmup"),
    *("Admission", "Always", "CountFilter", "CtrAccessor", "Probability"),
    *("EmbeddingStatistics", "RowStatistics", "RowUsage", "StalenessStatistics"),
    *("NormHistogram", "TableDescription", "UsedRows"),
    *("Async", "BoundedStaleness", "Geo", "Sync"),
    *("Attached", "StoredStrategies", "StoredStrategy"),
    *("CheckpointStatistics", "Failure", "PhaseStatistics", "ServerStatistics"),
    *("LoadedModel", "export", "hash_ids", "load_model"),
    *("CheckpointManager", "ClosureStatus", "ClusterCoordinator", "Constant"),
    *("Embedding", "Event", "EventKind", "FixedShards", "Initializer", "InputContext"),
    *("Mark", "MaxSize", "MetricStatistics", "MinSize", "Normal"),
    *("Optimizer", "OutputLine", "ParameterServerStrategy", "PerWorkerValues", "RemoteValue"),
    "Statistics",
    *("Resumed", "resume"),
    *("TrainingProgress", "Uniform", "Variable", "WorkerContext", "WorkerStatistics"),
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
    *("MLflow", "Run", "RunMetric", "Runs", "compare", "runs"),
]

INTERNALS = [
    path for path in FILES if {"dask_compat", "jupyter_compat"} & {path.stem, path.parent.name}
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
    *("_args_from_interpreter_flags", "_exit", "_run_exitfuncs"),  # of subprocess, os and atexit
    *("_bootstrap", "_flush_std_streams", "_inheriting"),  # of multiprocessing: to become a process
    *("_resource_tracker", "_fd"),  # and to use its parent's tracker
    *("_cache", "_cache_file", "_index_key", "_load_index"),  # of numba: what it has compiled
    "_schema",  # of operators of PyTorch: whether they change what they are given
    "_ops",  # of torch: what an operator is
    "_version",  # of tensors: there is no other count of their changes
    *("_C", "_make_wrapper_subclass", "_is_param", "_modules"),  # of torch: tensors of one's own
    *("_backward_hooks", "_post_accumulate_grad_hooks", "_has_any_global_hook"),  # of torch
    "_non_persistent_buffers_set",  # of torch: which buffers are no part of the state
    *("_compile_loss", "_flat_losses"),  # of Keras: what a model's losses are made of
    *("_forward_pre_hooks", "_tensor_name"),  # of torch: hooks that compute a weight, and its name
    *(
        "_inject_new_class",
        "_inject_property",
    ),  # of torch: classes of modules with computed weights
    "_weight_norm",  # an operator of torch
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),  # of its optimizers
    *("_strip_protocol", "_get_kwargs_from_urls", "_parent"),  # of fsspec
    "_registry",  # of JAX: what takes apart and puts together the instances of a class
    "_DYNAMIC_CLASS_TRACKER_BY_ID",  # of cloudpickle: the classes that have come here by value
}
"""Private names that psnb does not define and uses all the same."""


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


def test_what_is_public_is_nine_modules_and_all_else_is_private_by_its_path() -> None:
    found = {path.relative_to(PACKAGE).parts[0] for path in FILES}
    assert found == {
        "__init__.py",
        "__main__.py",  # the command: python -m psnb
        "_src",
        *FRAMEWORKS,
        "checkpoint.py",
        "data.py",
        "demo.py",
        "errors.py",
        "metrics.py",
    }


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
    """Return the names that psnb defines; not as this is imported, which all processes do."""
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


def test_internals_of_dask_and_jupyter_are_touched_in_their_modules_only() -> None:
    others = [path for path in FILES if path not in INTERNALS]
    found = {str(path): list(_touched(path.read_text())) for path in others}
    assert {path: names for path, names in found.items() if names} == {}


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


def imports_of(package: Path, room: str = "") -> grimp.ImportGraph:
    """Return which module imports which, also within functions, and by a name in a string.

    Strings count in a folder of the package, if they name what is in there.
    """
    graph = grimp.build_graph(package.name, cache_dir=None)
    within = ".".join(filter(None, (package.name, room)))
    for path in (package / room).rglob("*.py"):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for pattern in _named(path.read_text(), within):
            for found in matching(graph.modules, pattern):
                graph.add_import(importer=module.removesuffix(".__init__"), imported=found)
    return graph


def _named(code: str, within: str) -> Iterator[str]:
    """Yield the modules whose names are strings; with ``*`` for what is put into one to import."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Constant(value=str(text)):
                name = text
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.JoinedStr(values=values), *_],
            ):
                name = "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "*" for each in values
                )
            case _:
                continue
        if re.fullmatch(rf"{within}(\.[\w*]+)+", name):
            yield name


def arrows_up(graph: grimp.ImportGraph, layers: list[str], container: str) -> list[str]:
    """Return the imports of a higher layer, or of another one of the same height."""
    sets = [{each.strip() for each in layer.split("|")} for layer in layers]
    found = graph.find_illegal_dependencies_for_layers(sets, {container})
    return [f"{each.importer} -> {each.imported}" for each in found]


def circles(graph: grimp.ImportGraph, package: str) -> set[tuple[str, str]]:
    """Return imports without which nothing in a package would import each other in a circle."""
    children = graph.find_children(package)
    found = set(graph.nominate_cycle_breakers(package)) if children else set()
    return found.union(*(circles(graph, child) for child in children))


@cache
def contract(kind: str) -> dict[str, Any]:
    """Return the contract of a kind that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return next(each for each in settings["contracts"] if each["type"] == kind)


def test_no_import_goes_up_or_round_within_a_function_or_by_a_string() -> None:
    graph = imports_of(PACKAGE, "_src")
    assert arrows_up(graph, contract("layers")["layers"], "psnb._src") == []
    for each in contract("acyclic_siblings").get("ignore_imports", ()):
        importer, _, imported = each.partition(" -> ")
        graph.remove_import(importer=importer, imported=imported)
    assert circles(graph, "psnb._src") == set()


@pytest.mark.parametrize(
    "code",
    [
        "import house_of_mine.top",
        "def find():\n    from house_of_mine import top",
        "import_module('house_of_mine.top')",
        "import_module(f'house_of_mine.{name}')",
    ],
)
def test_what_imports_a_higher_layer_is_found_as_an_arrow_and_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    house = tmp_path / "house_of_mine"
    house.mkdir()
    for name, text in {
        "__init__": "",
        "top": "import house_of_mine.ground",
        "ground": code,
    }.items():
        (house / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    graph = imports_of(house)
    assert len(arrows_up(graph, ["top", "ground"], house.name)) == 1
    assert len(circles(graph, house.name)) == 1


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
def test_the_door_of_a_framework_is_offered_once_imported_and_imports_no_other_one(
    door: str, others: list[str]
) -> None:
    code = f"import psnb; assert {door!r} not in dir(psnb); import psnb.{door}"
    assert _imported_by(f"{code}; assert {door!r} in dir(psnb)", others) == "[]"


def test_the_extension_of_the_jupyter_server_imports_neither_dask_nor_numba() -> None:
    code = "import psnb._src.monitor.jupyter_server.handlers"
    assert _imported_by(code, ["dask", "distributed", "numba", "anywidget", "matplotlib"]) == "[]"


def _imported_by(code: str, modules: list[str]) -> str:
    code = f"{code}; import sys; print([m for m in {modules} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_each_public_name_comes_from_the_module_that_type_checkers_see() -> None:
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("psnb."):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert getattr(psnb, alias.name) is getattr(module, alias.name)


def _undocumented(owner: Any, seen: set[int]) -> Iterator[str]:
    """Yield what of a public module or class has no text, and of the classes that it names."""
    names = getattr(owner, "__all__", None) or [n for n in vars(owner) if not n.startswith("_")]
    for name in names:
        found = getattr(owner, name)
        if id(found) in seen:
            continue
        seen.add(id(found))
        if inspect.isclass(found):
            if not found.__doc__:
                yield name
            yield from (f"{name}.{each}" for each in _undocumented(found, seen))
        elif isinstance(found, property) or inspect.isroutine(found):
            yield from [] if inspect.getdoc(found) else [name]  # what overrides has its text


@pytest.mark.parametrize("name", ["psnb", *(f"psnb.{each}" for each in MODULES)])
def test_all_public_names_are_documented(name: str) -> None:
    # ruff takes all below a folder with an underscore for private.
    assert list(_undocumented(importlib.import_module(name), set())) == []


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
