"""What user code holds: variables, embeddings, partitioners, and the way to the servers."""

from psnb.parameters.arguments import (
    as_admission,
    as_initializer,
    as_padding,
    check_accessor,
    check_optimizer,
    check_rows,
    initial_array,
)
from psnb.parameters.batch import Request
from psnb.parameters.commit import UndecidedError, committing
from psnb.parameters.connection import open_connection
from psnb.parameters.dense_shards import DenseShard
from psnb.parameters.embedding import Embedding
from psnb.parameters.gradients import NonFinite, as_nonfinite
from psnb.parameters.line import Line
from psnb.parameters.live_optimizer import LiveOptimizer
from psnb.parameters.local_copies import LocalCopies
from psnb.parameters.partition import FixedShards, MaxSize, MinSize, Partitioner, row_ranges
from psnb.parameters.prefetch import prefetch
from psnb.parameters.rounds import apply_round, ending_round
from psnb.parameters.table_statistics import EmbeddingStatistics, RowStatistics
from psnb.parameters.together import pull, push
from psnb.parameters.transport import (
    PATIENCE,
    CommTransport,
    Transport,
    set_process_transport,
)
from psnb.parameters.updates import Round, Updates, buffered
from psnb.parameters.variable import Variable

__all__ = [
    "PATIENCE",
    "CommTransport",
    "DenseShard",
    "Embedding",
    "EmbeddingStatistics",
    "FixedShards",
    "Line",
    "LiveOptimizer",
    "LocalCopies",
    "MaxSize",
    "MinSize",
    "NonFinite",
    "Partitioner",
    "Request",
    "Round",
    "RowStatistics",
    "Transport",
    "UndecidedError",
    "Updates",
    "Variable",
    "apply_round",
    "as_admission",
    "as_initializer",
    "as_nonfinite",
    "as_padding",
    "buffered",
    "check_accessor",
    "check_optimizer",
    "check_rows",
    "committing",
    "ending_round",
    "initial_array",
    "open_connection",
    "prefetch",
    "pull",
    "push",
    "row_ranges",
    "set_process_transport",
]
