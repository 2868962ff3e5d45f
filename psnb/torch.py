"""Models in PyTorch on parameter servers: distributed modules, hashed embeddings, tensors, stages.

Not imported with ``psnb``; it needs PyTorch: ``pip install psnb[torch]``.
"""

try:
    from psnb._src.models.torch.distributed import DistributedModel, distribute
    from psnb._src.models.torch.pipeline import ModuleStage, stage
    from psnb._src.models.torch.tables import HashedEmbedding as Embedding
    from psnb._src.models.torch.tensors import TensorBags, as_torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("psnb.torch needs PyTorch: pip install 'psnb[torch]'") from error

__all__ = [
    "DistributedModel",
    "Embedding",
    "ModuleStage",
    "TensorBags",
    "as_torch",
    "distribute",
    "stage",
]
