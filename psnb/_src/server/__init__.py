"""What runs inside a server process: shards, tables, optimizers and initializers."""

from psnb._src.server.admission import Admission, Always, CountFilter, Probability
from psnb._src.server.array_checks import Form
from psnb._src.server.commit_log import ENDED, PROCESS, Commit, Fact, Part
from psnb._src.server.ctr import CtrAccessor
from psnb._src.server.duplicates import add_up, distinct, often_repeated
from psnb._src.server.expecting import Expected, ExpectedRows, SavedShard
from psnb._src.server.host import APART, Operation
from psnb._src.server.initializers import Constant, Initializer, Normal, Uniform
from psnb._src.server.kernels import all_finite, copy_with_norm, hash_ids, norm, read_only
from psnb._src.server.optimizers import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    CosineDecay,
    ExponentialDecay,
    LearningRate,
    Momentum,
    Optimizer,
    PiecewiseConstant,
    PolynomialDecay,
    RMSProp,
    Schedule,
    Warmup,
)
from psnb._src.server.rounds import COLLECTED
from psnb._src.server.row_index import GrowingRowIndex
from psnb._src.server.serving import BUSY, HANDLER, START, STOP, ParameterServers
from psnb._src.server.shard_copy import ITSELF, ForwardedRequest, Opening
from psnb._src.server.table import Piece, with_rates
from psnb._src.server.tables import OPTIMIZABLE, DenseTable, SparseTable
from psnb._src.server.updater import tuned

__all__ = [
    "APART",
    "BUSY",
    "COLLECTED",
    "ENDED",
    "FTRL",
    "HANDLER",
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
    "Constant",
    "CosineDecay",
    "CountFilter",
    "CtrAccessor",
    "DenseTable",
    "Expected",
    "ExpectedRows",
    "ExponentialDecay",
    "Fact",
    "Form",
    "ForwardedRequest",
    "GrowingRowIndex",
    "Initializer",
    "LearningRate",
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
    "tuned",
    "with_rates",
]
