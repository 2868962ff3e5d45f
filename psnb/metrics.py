"""Metrics whose states are merged exactly: each example counts once, whatever dies."""

from psnb._src.metrics.groups import GroupAUC
from psnb._src.metrics.means import (
    MAE,
    RMSE,
    Accuracy,
    Calibration,
    LogLoss,
    Mean,
    NormalizedEntropy,
    TopK,
)
from psnb._src.metrics.metric import MergeableMetric, MetricState, MetricStates
from psnb._src.metrics.queries import MRR, NDCG, HitRate
from psnb._src.metrics.ranking import AUC, PRAUC
from psnb._src.metrics.slice_table import SliceRow, SliceTable
from psnb._src.utils import foreign_names as _foreign_names

__all__ = [
    "AUC",
    "MAE",
    "MRR",
    "NDCG",
    "PRAUC",
    "RMSE",
    "Accuracy",
    "Calibration",
    "GroupAUC",
    "HitRate",
    "LogLoss",
    "Mean",
    "MergeableMetric",
    "MetricState",
    "MetricStates",
    "NormalizedEntropy",
    "SliceRow",
    "SliceTable",
    "TopK",
]

# Not by `def`: type checkers would take any name for one of this module.
globals()["__getattr__"] = _foreign_names.answer_of(__name__)
