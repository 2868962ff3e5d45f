"""What runs inside a server process: the actor, tables, optimizers and initializers."""

from psnb.server.actor import HANDLER, ParameterServer, serve
from psnb.server.admission import Admission, Always, CountFilter, Probability
from psnb.server.ctr import CtrAccessor, RowUse
from psnb.server.duplicates import add_up, distinct, often_repeated, summed
from psnb.server.initializers import Constant, Initializer, Normal, Uniform
from psnb.server.kernels import all_finite, copy_if_finite, hash_ids, read_only
from psnb.server.optimizers import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    CosineDecay,
    ExponentialDecay,
    Momentum,
    Optimizer,
    PiecewiseConstant,
    PolynomialDecay,
    RMSProp,
    Schedule,
    Warmup,
)
from psnb.server.tables import OPTIMIZABLE
from psnb.server.updater import tuned

__all__ = [
    "FTRL",
    "HANDLER",
    "OPTIMIZABLE",
    "SGD",
    "Adagrad",
    "Adam",
    "Admission",
    "Always",
    "Constant",
    "CosineDecay",
    "CountFilter",
    "CtrAccessor",
    "ExponentialDecay",
    "Initializer",
    "Momentum",
    "Normal",
    "Optimizer",
    "ParameterServer",
    "PiecewiseConstant",
    "PolynomialDecay",
    "Probability",
    "RMSProp",
    "RowUse",
    "Schedule",
    "Uniform",
    "Warmup",
    "add_up",
    "all_finite",
    "copy_if_finite",
    "distinct",
    "hash_ids",
    "often_repeated",
    "read_only",
    "serve",
    "summed",
    "tuned",
]
