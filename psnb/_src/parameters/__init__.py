"""Parameters as users see them (variables, embeddings), and the client side of the servers."""

from psnb._src.parameters.accumulated import accumulating
from psnb._src.parameters.blend import Blend
from psnb._src.parameters.comm_server_client import (
    FAILOVER_TIMEOUT,
    PATIENCE,
    CommServerClient,
)
from psnb._src.parameters.commit import UndecidedError
from psnb._src.parameters.control_connection import ControlConnection
from psnb._src.parameters.dense_shards import DenseShard, DenseShards
from psnb._src.parameters.embedding import Embedding
from psnb._src.parameters.embedding_spec import EmbeddingSpec
from psnb._src.parameters.ending_rounds import apply_round
from psnb._src.parameters.gradients import NonFinite, as_nonfinite
from psnb._src.parameters.handles import Handle, shards_of
from psnb._src.parameters.ids import DistinctIds
from psnb._src.parameters.local_copies import LocalCopies
from psnb._src.parameters.model_records import Arrays, ModelRecord, ModelRecords
from psnb._src.parameters.parameter_arguments import (
    as_admission,
    as_initializer,
    as_padding,
    check_accessor,
    check_by_element,
    check_optimizer,
    check_rows,
    checked_ids,
    initial_array,
)
from psnb._src.parameters.partition import FixedShards, MaxSize, MinSize, Partitioner
from psnb._src.parameters.prefetch_parameters import prefetch
from psnb._src.parameters.pulled_variables import PulledVariables
from psnb._src.parameters.rehearsal import Rehearsal, writes_nothing, writing_nothing
from psnb._src.parameters.request_batch import Request
from psnb._src.parameters.server_client import (
    add_process_client,
    reaching_by,
    remove_process_client,
)
from psnb._src.parameters.server_connection import open_connection
from psnb._src.parameters.sparse_shards import SparseShards
from psnb._src.parameters.table_snapshots import TableSnapshots, prepare_snapshots
from psnb._src.parameters.table_sources import table_source
from psnb._src.parameters.table_statistics import EmbeddingStatistics, RowStatistics
from psnb._src.parameters.together import pull, push
from psnb._src.parameters.updates import Round, Updates, buffered
from psnb._src.parameters.variable import Variable
from psnb._src.parameters.ways_on import UNKNOWN, advise, completed

__all__ = [
    "FAILOVER_TIMEOUT",
    "PATIENCE",
    "UNKNOWN",
    "Arrays",
    "Blend",
    "CommServerClient",
    "ControlConnection",
    "DenseShard",
    "DenseShards",
    "DistinctIds",
    "Embedding",
    "EmbeddingSpec",
    "EmbeddingStatistics",
    "FixedShards",
    "Handle",
    "LocalCopies",
    "MaxSize",
    "MinSize",
    "ModelRecord",
    "ModelRecords",
    "NonFinite",
    "Partitioner",
    "PulledVariables",
    "Rehearsal",
    "Request",
    "Round",
    "RowStatistics",
    "SparseShards",
    "TableSnapshots",
    "UndecidedError",
    "Updates",
    "Variable",
    "accumulating",
    "add_process_client",
    "advise",
    "apply_round",
    "as_admission",
    "as_initializer",
    "as_nonfinite",
    "as_padding",
    "buffered",
    "check_accessor",
    "check_by_element",
    "check_optimizer",
    "check_rows",
    "checked_ids",
    "completed",
    "initial_array",
    "open_connection",
    "prefetch",
    "prepare_snapshots",
    "pull",
    "push",
    "reaching_by",
    "remove_process_client",
    "shards_of",
    "table_source",
    "writes_nothing",
    "writing_nothing",
]
