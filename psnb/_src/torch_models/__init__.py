"""Models in PyTorch on parameter servers; only `psnb.torch` imports this, or torch for it."""

from psnb._src.torch_models.as_tensors import TensorBags, as_torch
from psnb._src.torch_models.distributed_model import DistributedModel, distribute
from psnb._src.torch_models.hashed_embedding import HashedEmbedding

__all__ = ["DistributedModel", "HashedEmbedding", "TensorBags", "as_torch", "distribute"]
