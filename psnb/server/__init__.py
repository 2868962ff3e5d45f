"""What runs inside a server process: the actor, tables, optimizers and initializers."""

from psnb.server.actor import HANDLER, ParameterServer, serve
from psnb.server.admission import Admission, Always, CountFilter, Probability
from psnb.server.copy import ITSELF, Exchange
from psnb.server.ctr import CtrAccessor, RowUse
from psnb.server.duplicates import add_up, distinct, often_repeated, summed
from psnb.server.host import Operation
from psnb.server.initializers import Constant, Initializer, Normal, Uniform
from psnb.server.kernels import all_finite, copy_with_norm, hash_ids, norm, read_only
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
from psnb.server.rounds import HELD
from psnb.server.rows import GrowingRows
from psnb.server.tables import OPTIMIZABLE, DenseTable, SparseTable
from psnb.server.updater import tuned

__all__ = [
    "FTRL",
    "HANDLER",
    "HELD",
    "ITSELF",
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
    "DenseTable",
    "Exchange",
    "ExponentialDecay",
    "GrowingRows",
    "Initializer",
    "Momentum",
    "Normal",
    "Operation",
    "Optimizer",
    "ParameterServer",
    "PiecewiseConstant",
    "PolynomialDecay",
    "Probability",
    "RMSProp",
    "RowUse",
    "Schedule",
    "SparseTable",
    "Uniform",
    "Warmup",
    "add_up",
    "all_finite",
    "copy_with_norm",
    "distinct",
    "hash_ids",
    "norm",
    "often_repeated",
    "read_only",
    "serve",
    "summed",
    "tuned",
]
