"""psnb: interactive parameter-server training in notebooks, on Dask.

Names are imported at their first use: the Jupyter server, which loads an extension from this
package, does not need Dask and numba, which take a second and 90 MB.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from psnb import errors
from psnb._src.utils.foreign_names import module_error

if TYPE_CHECKING:
    from psnb import checkpoint, data, metrics
    from psnb._src.client.embedding import Embedding, EmbeddingStatistics, RowStatistics
    from psnb._src.client.pull import prefetch, pull, push
    from psnb._src.client.tables.description import NormHistogram, TableDescription, UsedRows
    from psnb._src.client.text_ids import hash_ids
    from psnb._src.client.variable import Variable
    from psnb._src.cluster.links import connect
    from psnb._src.cluster.start import local_cluster
    from psnb._src.coordinator.closures.completion import as_completed
    from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
    from psnb._src.coordinator.coordinator import ClusterCoordinator
    from psnb._src.coordinator.resume import Attached, CheckpointManager, Resumed, attach, resume
    from psnb._src.coordinator.rewinding import Mark
    from psnb._src.coordinator.values import PerWorkerValues
    from psnb._src.models.export.loaded import LoadedModel, load_model
    from psnb._src.models.export.writing import export
    from psnb._src.monitor.events import Event, EventKind
    from psnb._src.monitor.failures import Failure
    from psnb._src.monitor.statistics import (
        CheckpointStatistics,
        MetricStatistics,
        ServerStatistics,
        StalenessStatistics,
        Statistics,
        TrainingProgress,
        WorkerStatistics,
    )
    from psnb._src.monitor.worker_output import OutputLine
    from psnb._src.protocol.modes import Async, BoundedStaleness, Geo, Sync
    from psnb._src.server.optimizer import Optimizer
    from psnb._src.server.optimizers import (
        FTRL,
        SGD,
        Adagrad,
        Adam,
        Lion,
        Momentum,
        RMSProp,
        RowWiseAdagrad,
    )
    from psnb._src.server.schedules import (
        CosineDecay,
        ExponentialDecay,
        PiecewiseConstant,
        PolynomialDecay,
        Schedule,
        Warmup,
    )
    from psnb._src.server.tables.admission import Admission, Always, CountFilter, Probability
    from psnb._src.server.tables.eviction.policy import RowUsage
    from psnb._src.server.tables.initializers import Constant, Initializer, Normal, Uniform
    from psnb._src.server.tables.row_use import CtrAccessor
    from psnb._src.server.tables.sharding import FixedShards, MaxSize, MinSize
    from psnb._src.strategy.stored import StoredStrategies, StoredStrategy
    from psnb._src.strategy.strategy import ParameterServerStrategy
    from psnb._src.training.callbacks import (
        CSVLog,
        EarlyStopping,
        JSONLinesLog,
        LearningRateScheduler,
        TensorBoard,
    )
    from psnb._src.training.comparing import compare
    from psnb._src.training.device_workers import DeviceWorker, Downpour, Hogwild
    from psnb._src.training.history import EpochRow, TrainingHistory, TrainingSnapshot
    from psnb._src.training.mlflow_log import MLflow
    from psnb._src.training.runs import Run, RunMetric, Runs, runs
    from psnb._src.training.section import Section
    from psnb._src.training.trainer import Callback, Trainer
    from psnb._src.utils.phases import PhaseStatistics
    from psnb._src.worker.context import (
        InputContext,
        WorkerContext,
        report,
        worker_context,
        worker_index,
    )

__version__ = "0.1.0"

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Admission",
    "Always",
    "Async",
    "Attached",
    "BoundedStaleness",
    "CSVLog",
    "Callback",
    "CheckpointManager",
    "CheckpointStatistics",
    "ClosureStatus",
    "ClusterCoordinator",
    "Constant",
    "CosineDecay",
    "CountFilter",
    "CtrAccessor",
    "DeviceWorker",
    "Downpour",
    "EarlyStopping",
    "Embedding",
    "EmbeddingStatistics",
    "EpochRow",
    "Event",
    "EventKind",
    "ExponentialDecay",
    "Failure",
    "FixedShards",
    "Geo",
    "Hogwild",
    "Initializer",
    "InputContext",
    "JSONLinesLog",
    "LearningRateScheduler",
    "Lion",
    "LoadedModel",
    "MLflow",
    "Mark",
    "MaxSize",
    "MetricStatistics",
    "MinSize",
    "Momentum",
    "NormHistogram",
    "Normal",
    "Optimizer",
    "OutputLine",
    "ParameterServerStrategy",
    "PerWorkerValues",
    "PhaseStatistics",
    "PiecewiseConstant",
    "PolynomialDecay",
    "Probability",
    "RMSProp",
    "RemoteValue",
    "Resumed",
    "RowStatistics",
    "RowUsage",
    "RowWiseAdagrad",
    "Run",
    "RunMetric",
    "Runs",
    "Schedule",
    "Section",
    "ServerStatistics",
    "StalenessStatistics",
    "Statistics",
    "StoredStrategies",
    "StoredStrategy",
    "Sync",
    "TableDescription",
    "TensorBoard",
    "Trainer",
    "TrainingHistory",
    "TrainingProgress",
    "TrainingSnapshot",
    "Uniform",
    "UsedRows",
    "Variable",
    "Warmup",
    "WorkerContext",
    "WorkerStatistics",
    "as_completed",
    "attach",
    "checkpoint",
    "compare",
    "connect",
    "data",
    "errors",
    "export",
    "hash_ids",
    "load_model",
    "local_cluster",
    "metrics",
    "prefetch",
    "pull",
    "push",
    "report",
    "resume",
    "runs",
    "worker_context",
    "worker_index",
]

_PLACES = {
    "cluster.links": ("connect",),
    "cluster.start": ("local_cluster",),
    "coordinator.resume": ("Attached", "CheckpointManager", "Resumed", "attach", "resume"),
    "coordinator.closures.remote_value": ("ClosureStatus", "RemoteValue"),
    "coordinator.closures.completion": ("as_completed",),
    "coordinator.coordinator": ("ClusterCoordinator",),
    "coordinator.rewinding": ("Mark",),
    "coordinator.values": ("PerWorkerValues",),
    "models.export.loaded": ("LoadedModel", "load_model"),
    "models.export.writing": ("export",),
    "protocol.modes": ("Async", "BoundedStaleness", "Geo", "Sync"),
    "monitor.statistics": (
        "CheckpointStatistics",
        "MetricStatistics",
        "ServerStatistics",
        "StalenessStatistics",
        "Statistics",
        "TrainingProgress",
        "WorkerStatistics",
    ),
    "monitor.events": ("Event", "EventKind"),
    "monitor.failures": ("Failure",),
    "monitor.worker_output": ("OutputLine",),
    "utils.phases": ("PhaseStatistics",),
    "client.embedding": ("Embedding", "EmbeddingStatistics", "RowStatistics"),
    "client.tables.description": ("NormHistogram", "TableDescription", "UsedRows"),
    "client.variable": ("Variable",),
    "client.pull": ("prefetch", "pull", "push"),
    "client.text_ids": ("hash_ids",),
    "worker.context": ("InputContext", "WorkerContext", "report", "worker_context", "worker_index"),
    "server.optimizers": (
        *("Adagrad", "Adam", "FTRL", "Lion", "Momentum", "RMSProp", "RowWiseAdagrad", "SGD"),
    ),
    "server.optimizer": ("Optimizer",),
    "server.schedules": (
        "CosineDecay",
        "ExponentialDecay",
        "PiecewiseConstant",
        "PolynomialDecay",
        "Schedule",
        "Warmup",
    ),
    "server.tables.admission": ("Admission", "Always", "CountFilter", "Probability"),
    "server.tables.eviction.policy": ("RowUsage",),
    "server.tables.initializers": ("Constant", "Initializer", "Normal", "Uniform"),
    "server.tables.sharding": ("FixedShards", "MaxSize", "MinSize"),
    "server.tables.row_use": ("CtrAccessor",),
    "strategy.strategy": ("ParameterServerStrategy",),
    "strategy.stored": ("StoredStrategies", "StoredStrategy"),
    "training.callbacks": (
        "CSVLog",
        "EarlyStopping",
        "JSONLinesLog",
        "LearningRateScheduler",
        "TensorBoard",
    ),
    "training.device_workers": ("DeviceWorker", "Downpour", "Hogwild"),
    "training.history": ("EpochRow", "TrainingHistory", "TrainingSnapshot"),
    "training.comparing": ("compare",),
    "training.mlflow_log": ("MLflow",),
    "training.runs": ("Run", "RunMetric", "Runs", "runs"),
    "training.section": ("Section",),
    "training.trainer": ("Callback", "Trainer"),
}
"""Which public names are of which module of `psnb._src`, imported when one is asked for."""

_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


_NEEDED = {
    "locks of files (fcntl)": find_spec("fcntl") is not None,
    "care for forks (os.register_at_fork)": hasattr(os, "register_at_fork"),
    "groups of processes (os.killpg)": hasattr(os, "killpg"),
}
"""What psnb needs of the system, and whether it is there; shared memory, it can do without."""

if not all(_NEEDED.values()):
    raise errors.PlatformError(
        f"psnb does not run on {sys.platform}, which lacks "
        f"{', '.join(what for what, there in _NEEDED.items() if not there)}. It is made for Linux: "
        "on Windows install it in WSL, elsewhere in a container or on another host"
    )


def __getattr__(name: str) -> object:
    """Import a public name from the folder of `psnb._src` that exports it."""
    if name in ("checkpoint", "data", "jax", "keras", "metrics", "torch"):  # public modules
        return import_module(f"psnb.{name}")
    if name in _MODULE_OF:
        found = getattr(import_module(f"psnb._src.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found
    raise module_error("psnb", name)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return where the Jupyter server extension is; ``jupyter server extension list`` shows it."""
    return [{"module": "psnb._src.monitor.jupyter_server"}]


def __dir__() -> list[str]:
    # Modules that were imported: a look at what all names are must not import frameworks.
    modules = [name for name in ("demo", "jax", "keras", "torch") if f"psnb.{name}" in sys.modules]
    return sorted([*__all__, *modules, "__version__"])
