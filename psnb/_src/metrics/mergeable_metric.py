"""MergeableMetric: the base of all metrics. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from psnb._src.foreign_names import SaysWhatToUse
from psnb._src.metrics.metric_state import MetricState
from psnb._src.metrics.state_form import StateForm


@dataclass(frozen=True)
class MergeableMetric(SaysWhatToUse, ABC):
    """A description of a metric, without any data: frozen, and cheap to pickle.

    Call it with a batch to get a `MetricState`. States of equal metrics can be added.
    """

    @property
    @abstractmethod
    def form(self) -> StateForm:
        """What arrays its states are."""

    @abstractmethod
    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the value of a state's array, or, in words, why it has none."""

    def empty(self) -> MetricState:
        """Return the state of no examples; adding it changes nothing."""
        return MetricState(self, self.form.zeros())
