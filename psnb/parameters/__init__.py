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
from psnb.parameters.dense_shards import DenseShard
from psnb.parameters.embedding import Embedding
from psnb.parameters.gradients import NonFinite, as_nonfinite
from psnb.parameters.live_optimizer import LiveOptimizer
from psnb.parameters.partition import FixedShards, MaxSize, MinSize, Partitioner, row_ranges
from psnb.parameters.prefetch import prefetch
from psnb.parameters.table_statistics import EmbeddingStatistics, RowStatistics
from psnb.parameters.together import pull, push
from psnb.parameters.transport import (
    CommTransport,
    Request,
    ServerAddress,
    Transport,
    set_process_transport,
)
from psnb.parameters.updates import CommitId, Updates, buffered
from psnb.parameters.variable import Variable

__all__ = [
    "CommTransport",
    "CommitId",
    "DenseShard",
    "Embedding",
    "EmbeddingStatistics",
    "FixedShards",
    "LiveOptimizer",
    "MaxSize",
    "MinSize",
    "NonFinite",
    "Partitioner",
    "Request",
    "RowStatistics",
    "ServerAddress",
    "Transport",
    "Updates",
    "Variable",
    "as_admission",
    "as_initializer",
    "as_nonfinite",
    "as_padding",
    "buffered",
    "check_accessor",
    "check_optimizer",
    "check_rows",
    "initial_array",
    "prefetch",
    "pull",
    "push",
    "row_ranges",
    "set_process_transport",
]
