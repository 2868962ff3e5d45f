"""Models in PyTorch on parameter servers; only `psnb.torch` and `keras_models` import this."""

from psnb._src.torch_models.as_tensors import TensorBags, as_torch, tensor_of
from psnb._src.torch_models.described_call import OperationRecorder, described_call
from psnb._src.torch_models.distribute import distribute
from psnb._src.torch_models.distributed_model import DistributedModel
from psnb._src.torch_models.hashed_embedding import HashedEmbedding
from psnb._src.torch_models.id_plan import PlannedIds
from psnb._src.torch_models.model_pass import ModelPass
from psnb._src.torch_models.module_stage import ModuleStage, stage
from psnb._src.torch_models.torch_export import TracedEmbedding, exported

__all__ = [
    "DistributedModel",
    "HashedEmbedding",
    "ModelPass",
    "ModuleStage",
    "OperationRecorder",
    "PlannedIds",
    "TensorBags",
    "TracedEmbedding",
    "as_torch",
    "described_call",
    "distribute",
    "exported",
    "stage",
    "tensor_of",
]
