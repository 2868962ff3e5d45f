"""CountedMetrics: the metrics of an epoch, added up on the servers over all workers.

Each batch adds to one variable what it gives to the metrics of Keras, with everything else that its
closure does: so it counts exactly once, whatever dies.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from psnb._src.keras_models.keras_program import KerasProgram, Trained
from psnb._src.parameters import Variable

_REFRESHED = 0.5
"""Seconds after which running metrics are read again."""

Logs = dict[str, Any]


class CountedMetrics:
    """The metrics of one pass at a time.

    Parameters
    ----------
    program : KerasProgram
        Knows what they come to.
    variable : Variable
        Where they are added up.
    """

    def __init__(self, program: KerasProgram, variable: Variable) -> None:
        self._program, self.variable = program, variable
        self._loss = self._examples = 0.0
        self._running: Logs = {}
        self._read = 0.0

    def begin(self) -> None:
        """Begin with nothing."""
        self.variable.assign(np.zeros(self.variable.shape))
        self._loss = self._examples = 0.0
        self._running, self._read = {}, time.monotonic()

    def add(self, batch: Trained) -> Logs:
        """Note what a batch gave; return what callbacks are told: metrics of the pass so far.

        The loss is that of all batches that have ended; others are read now and then.
        """
        loss, examples = batch
        self._loss += loss * examples
        self._examples += examples
        if (now := time.monotonic()) >= self._read + _REFRESHED:
            self._read, self._running = now, self.results()
        return {**self._running, "loss": self._loss / self._examples}

    def results(self) -> Logs:
        """Return the metrics of all batches so far."""
        return self._program.network.results(self.variable.read())
