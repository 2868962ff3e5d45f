"""psnb: interactive parameter-server training in notebooks, on Dask.

Names are imported at their first use: the Jupyter server, which loads an extension from this
package, does not need Dask and numba, which take a second and 90 MB.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from psnb import errors
from psnb._src.foreign_names import module_error

if TYPE_CHECKING:
    from psnb import checkpoint, data, metrics
    from psnb._src.cluster import connect, local_cluster
    from psnb._src.coordinator import (
        Attached,
        CheckpointManager,
        ClosureStatus,
        ClusterCoordinator,
        PerWorkerValues,
        RemoteValue,
        Resumed,
        as_completed,
        attach,
        resume,
    )
    from psnb._src.export import LoadedModel, export, load_model
    from psnb._src.modes import Async, BoundedStaleness, Geo, Sync
    from psnb._src.monitor import (
        CheckpointStatistics,
        Event,
        EventKind,
        Failure,
        MetricStatistics,
        PhaseStatistics,
        ServerStatistics,
        StalenessStatistics,
        Statistics,
        TrainingProgress,
        WorkerStatistics,
    )
    from psnb._src.parameters import (
        Embedding,
        EmbeddingStatistics,
        FixedShards,
        MaxSize,
        MinSize,
        RowStatistics,
        Variable,
        prefetch,
        pull,
        push,
    )
    from psnb._src.runtime import InputContext, WorkerContext, report, worker_context, worker_index
    from psnb._src.server import (
        FTRL,
        SGD,
        Adagrad,
        Adam,
        Admission,
        Always,
        Constant,
        CosineDecay,
        CountFilter,
        CtrAccessor,
        ExponentialDecay,
        Initializer,
        Momentum,
        Normal,
        Optimizer,
        PiecewiseConstant,
        PolynomialDecay,
        Probability,
        RMSProp,
        Schedule,
        Uniform,
        Warmup,
    )
    from psnb._src.strategy import ParameterServerStrategy, StoredStrategies, StoredStrategy
    from psnb._src.training import (
        Callback,
        CSVLog,
        DeviceWorker,
        Downpour,
        EarlyStopping,
        EpochRow,
        Hogwild,
        JSONLinesLog,
        LearningRateScheduler,
        Section,
        TensorBoard,
        Trainer,
        TrainingHistory,
        TrainingSnapshot,
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
    "LoadedModel",
    "MaxSize",
    "MetricStatistics",
    "MinSize",
    "Momentum",
    "Normal",
    "Optimizer",
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
    "Schedule",
    "Section",
    "ServerStatistics",
    "StalenessStatistics",
    "Statistics",
    "StoredStrategies",
    "StoredStrategy",
    "Sync",
    "TensorBoard",
    "Trainer",
    "TrainingHistory",
    "TrainingProgress",
    "TrainingSnapshot",
    "Uniform",
    "Variable",
    "Warmup",
    "WorkerContext",
    "WorkerStatistics",
    "as_completed",
    "attach",
    "checkpoint",
    "connect",
    "data",
    "errors",
    "export",
    "load_model",
    "local_cluster",
    "metrics",
    "prefetch",
    "pull",
    "push",
    "report",
    "resume",
    "worker_context",
    "worker_index",
]

_ROOMS = (
    "export",  # first: it is there without Dask
    "cluster",
    "coordinator",
    "modes",
    "monitor",
    "parameters",
    "runtime",
    "server",
    "strategy",
    "training",
)


def __getattr__(name: str) -> object:
    """Import a public name from the folder of `psnb._src` that exports it."""
    if name in ("checkpoint", "data", "jax", "keras", "metrics", "torch"):  # public modules
        return import_module(f"psnb.{name}")
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"psnb._src.{room}")
            if name in getattr(module, "__all__", vars(module)):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise module_error("psnb", name)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return where the Jupyter server extension is; ``jupyter server extension list`` shows it."""
    return [{"module": "psnb._src.monitor.hub"}]


def __dir__() -> list[str]:
    # Modules that were imported: a look at what all names are must not import frameworks.
    modules = [name for name in ("demo", "jax", "keras", "torch") if f"psnb.{name}" in sys.modules]
    return sorted([*__all__, *modules, "__version__"])
