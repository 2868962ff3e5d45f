"""Optimizers, which run on the parameter servers, and learning-rate schedules. Without Dask."""

from psnb._src.server.optimizers.adagrad import Adagrad
from psnb._src.server.optimizers.adam import Adam
from psnb._src.server.optimizers.ftrl import FTRL
from psnb._src.server.optimizers.known_kinds import OPTIMIZERS
from psnb._src.server.optimizers.momentum import Momentum
from psnb._src.server.optimizers.optimizer import Optimizer, Workspace
from psnb._src.server.optimizers.rmsprop import RMSProp
from psnb._src.server.optimizers.schedules import (
    CosineDecay,
    ExponentialDecay,
    LearningRate,
    PiecewiseConstant,
    PolynomialDecay,
    Schedule,
    Warmup,
    is_users,
    rate_at,
)
from psnb._src.server.optimizers.sgd import SGD

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "CosineDecay",
    "ExponentialDecay",
    "LearningRate",
    "Momentum",
    "Optimizer",
    "PiecewiseConstant",
    "PolynomialDecay",
    "RMSProp",
    "Schedule",
    "Warmup",
    "Workspace",
    "is_users",
    "rate_at",
]
