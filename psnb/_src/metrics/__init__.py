"""Metrics whose states are merged exactly, whichever worker came first. Pure numpy."""

from psnb._src.metrics.accuracy import Accuracy
from psnb._src.metrics.auc import AUC
from psnb._src.metrics.calibration import Calibration
from psnb._src.metrics.log_loss import LogLoss
from psnb._src.metrics.mae import MAE
from psnb._src.metrics.mean import Mean
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState, joined
from psnb._src.metrics.metric_states import MetricStates, united
from psnb._src.metrics.normalized_entropy import NormalizedEntropy
from psnb._src.metrics.pr_auc import PRAUC
from psnb._src.metrics.rmse import RMSE
from psnb._src.metrics.saved_states import loaded_states, saved_states
from psnb._src.metrics.top_k import TopK

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
    "joined",
    "loaded_states",
    "saved_states",
    "united",
]
