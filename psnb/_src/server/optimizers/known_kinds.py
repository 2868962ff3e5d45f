"""The optimizers and schedules of psnb by name, for `psnb._src.descriptions.made`. Pure."""

from __future__ import annotations

from psnb._src.server.optimizers.adagrad import Adagrad
from psnb._src.server.optimizers.adam import Adam
from psnb._src.server.optimizers.ftrl import FTRL
from psnb._src.server.optimizers.momentum import Momentum
from psnb._src.server.optimizers.rmsprop import RMSProp
from psnb._src.server.optimizers.schedules import SCHEDULES
from psnb._src.server.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type] = {
    **{each.__name__: each for each in (FTRL, SGD, Adagrad, Adam, Momentum, RMSProp)},
    **SCHEDULES,
}
"""Functions of users are not among them: only their name is known."""
