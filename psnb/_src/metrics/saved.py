"""States of metrics as JSON can hold them, for checkpoints; without pickle. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

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
from psnb._src.metrics.queries import MRR, NDCG, Grouped, HitRate
from psnb._src.metrics.ranking import AUC, PRAUC
from psnb._src.metrics.slices import Sliced
from psnb._src.utils.config import from_config, to_config
from psnb._src.utils.sealed_json import typed

_ALL: tuple[type[MergeableMetric], ...] = (
    *(Accuracy, AUC, Calibration, GroupAUC, Grouped, HitRate, LogLoss, MAE, Mean, MRR, NDCG),
    *(NormalizedEntropy, PRAUC, RMSE, Sliced, TopK),
)

_METRICS: dict[str, type] = {each.__name__: each for each in _ALL}

_MOST_BYTES = 16 << 20
"""The state of an exact AUC grows with its scores; one that is larger than this is left out.

A full `GroupAUC` of the default capacity is smaller: it takes 84 ms to pack, and 2.5 MiB.
"""


def saved_states(states: Mapping[str, MetricState]) -> dict[str, Any]:
    """Return states by name, without large ones and without the states of users' own metrics."""
    return {
        name: {
            "metric": to_config(state.metric),
            "array": base64.b64encode(
                zlib.compress(state.metric.form.to_bytes(state.array), 1)
            ).decode(),
        }
        for name, state in states.items()
        if _is_own(state.metric) and state.array.nbytes <= _MOST_BYTES
    }


def _is_own(metric: MergeableMetric) -> bool:
    """Whether it is a metric of psnb, and so is what it is made of."""
    inner = getattr(metric, "metric", None)
    return type(metric) in _ALL and (inner is None or _is_own(inner))


def loaded_states(saved: Any) -> MetricStates:
    """Return the states that `saved_states` was given.

    Raises
    ------
    ValueError
        If these are none.
    """
    found = typed(saved, dict[str, _SavedState])
    return MetricStates({name: _state(name, each) for name, each in found.items()})


class _SavedState(Struct, forbid_unknown_fields=True):
    metric: dict[str, Any]
    array: str  # base64 of packed numbers


def _state(name: str, saved: _SavedState) -> MetricState:
    metric = from_config(f"metric {name!r:.80}", saved.metric, _METRICS)
    try:
        packed = base64.b64decode(saved.array, validate=True)
        data = zlib.decompressobj().decompress(packed, _MOST_BYTES)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"the state of {name!r:.80} is damaged: {error}") from error
    return MetricState(metric, metric.form.of_bytes(data))
