"""Models in PyTorch on parameter servers: distributed modules, hashed embeddings, tensors.

Not imported with `psnb`; it needs PyTorch: ``pip install psnb[torch]``.
"""

try:
    from psnb._src.torch_models import DistributedModel, TensorBags, as_torch, distribute
    from psnb._src.torch_models import HashedEmbedding as Embedding
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("psnb.torch needs PyTorch: pip install 'psnb[torch]'") from error

__all__ = ["DistributedModel", "Embedding", "TensorBags", "as_torch", "distribute"]
