"""Metrics whose states are merged exactly: each example counts once, whoever dies."""

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
