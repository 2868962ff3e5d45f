"""The optimizers of psnb, by name.

Each is a kernel, and the description that calls it; see `psnb._src.server.optimizer`.
"""

from __future__ import annotations

from psnb._src.server.optimizers.adagrad import FTRL, Adagrad, RowWiseAdagrad
from psnb._src.server.optimizers.adam import Adam, RMSProp
from psnb._src.server.optimizers.momentum import SGD, Lion, Momentum
from psnb._src.server.schedules import SCHEDULES

OPTIMIZERS: dict[str, type] = {
    **{
        each.__name__: each
        for each in (FTRL, SGD, Adagrad, Adam, Lion, Momentum, RMSProp, RowWiseAdagrad)
    },
    **SCHEDULES,
}
"""Functions of users are not among them: only their name is known."""

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "Lion",
    "Momentum",
    "RMSProp",
    "RowWiseAdagrad",
]
