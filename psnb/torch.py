"""Models in PyTorch on parameter servers: distributed modules, hashed embeddings, tensors.

Not imported with `psnb`; it needs PyTorch: ``pip install psnb[torch]``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"psnb.torch needs PyTorch: pip install 'psnb[torch]' ({error})") from error

from psnb._src.torch_models import DistributedModel, TensorBags, as_torch, distribute
from psnb._src.torch_models import HashedEmbedding as Embedding

__all__ = ["DistributedModel", "Embedding", "TensorBags", "as_torch", "distribute"]
