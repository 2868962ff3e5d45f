"""States of metrics as JSON can hold them, for checkpoints; without pickle. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from psnb._src.descriptions import described, made
from psnb._src.metrics.accuracy import Accuracy
from psnb._src.metrics.auc import AUC
from psnb._src.metrics.calibration import Calibration
from psnb._src.metrics.log_loss import LogLoss
from psnb._src.metrics.mae import MAE
from psnb._src.metrics.mean import Mean
from psnb._src.metrics.mergeable_metric import MergeableMetric
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.metric_states import MetricStates
from psnb._src.metrics.normalized_entropy import NormalizedEntropy
from psnb._src.metrics.pr_auc import PRAUC
from psnb._src.metrics.rmse import RMSE
from psnb._src.metrics.top_k import TopK
from psnb._src.sealed_json import keys, require

_ALL: tuple[type[MergeableMetric], ...] = (
    *(Accuracy, AUC, Calibration, LogLoss, MAE, Mean),
    *(NormalizedEntropy, PRAUC, RMSE, TopK),
)
_METRICS: dict[str, type] = {each.__name__: each for each in _ALL}

_MOST_BYTES = 1 << 20
"""The state of an exact AUC grows with its scores; one that is larger than this is left out."""


def saved_states(states: Mapping[str, MetricState]) -> dict[str, Any]:
    """Return states by name; those of users' own metrics, and large ones, are left out."""
    return {
        name: {
            "metric": described(state.metric),
            "array": base64.b64encode(zlib.compress(state.array.tobytes(), 1)).decode(),
        }
        for name, state in states.items()
        if type(state.metric) in _ALL and state.array.nbytes <= _MOST_BYTES
    }


def loaded_states(saved: Any) -> MetricStates:
    """Return the states that `saved_states` was given.

    Raises
    ------
    ValueError
        If these are none.
    """
    require(isinstance(saved, dict), f"states of metrics are {saved!r:.80}")
    return MetricStates({name: _state(name, each) for name, each in saved.items()})


def _state(name: str, saved: Any) -> MetricState:
    require(isinstance(saved, dict), f"the state of {name!r:.80} is {saved!r:.80}")
    keys(f"the state of {name!r:.80}", saved, {"metric", "array"})
    metric = made(f"metric {name!r:.80}", saved["metric"], _METRICS)
    zeros = metric.form.zeros()
    try:
        packed = base64.b64decode(saved["array"], validate=True)
        data = zlib.decompressobj().decompress(packed, _MOST_BYTES)
    except (TypeError, binascii.Error, zlib.error) as error:
        raise ValueError(f"the state of {name!r:.80} is damaged: {error}") from error
    array = np.frombuffer(data, zeros.dtype).reshape(-1, *zeros.shape[1:]).copy()
    return MetricState(metric, array)
