"""What runs inside a server process: shards, tables, optimizers and initializers."""

from psnb.server.admission import Admission, Always, CountFilter, Probability
from psnb.server.checks import Form
from psnb.server.commits import ENDED, PROCESS, Commit, Fact, Part
from psnb.server.copy import ITSELF, Connect, Exchange, Opening
from psnb.server.ctr import CtrAccessor, RowUse
from psnb.server.duplicates import add_up, distinct, often_repeated, summed
from psnb.server.expecting import Expected, ExpectedRows, SavedShard
from psnb.server.host import APART, Operation
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
from psnb.server.serving import BUSY, HANDLER, START, STOP, ParameterServers
from psnb.server.table import Piece
from psnb.server.tables import OPTIMIZABLE, DenseTable, SparseTable
from psnb.server.updater import tuned

__all__ = [
    "APART",
    "BUSY",
    "ENDED",
    "FTRL",
    "HANDLER",
    "HELD",
    "ITSELF",
    "OPTIMIZABLE",
    "PROCESS",
    "SGD",
    "START",
    "STOP",
    "Adagrad",
    "Adam",
    "Admission",
    "Always",
    "Commit",
    "Connect",
    "Constant",
    "CosineDecay",
    "CountFilter",
    "CtrAccessor",
    "DenseTable",
    "Exchange",
    "Expected",
    "ExpectedRows",
    "ExponentialDecay",
    "Fact",
    "Form",
    "GrowingRows",
    "Initializer",
    "Momentum",
    "Normal",
    "Opening",
    "Operation",
    "Optimizer",
    "ParameterServers",
    "Part",
    "Piece",
    "PiecewiseConstant",
    "PolynomialDecay",
    "Probability",
    "RMSProp",
    "RowUse",
    "SavedShard",
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
    "summed",
    "tuned",
]
