"""Metrics whose states are merged exactly: each example counts once, whoever dies."""

from psnb._src import foreign_names as _foreign_names
from psnb._src.metrics import (
    AUC,
    MAE,
    PRAUC,
    RMSE,
    Accuracy,
    Calibration,
    LogLoss,
    Mean,
    MergeableMetric,
    MetricState,
    MetricStates,
    NormalizedEntropy,
    TopK,
)

__all__ = [
    "AUC",
    "MAE",
    "PRAUC",
    "RMSE",
    "Accuracy",
    "Calibration",
    "LogLoss",
    "Mean",
    "MergeableMetric",
    "MetricState",
    "MetricStates",
    "NormalizedEntropy",
    "TopK",
]

# Not by `def`: type checkers would take any name for one of this module.
globals()["__getattr__"] = _foreign_names.answer_of(__name__)
