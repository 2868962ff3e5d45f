"""Models in Keras on parameter servers; nothing but `psnb.keras` imports this, or Keras for it."""

import os

# Before Keras is imported, also on workers that unpickle a model: the backend that psnb drives.
os.environ.setdefault("KERAS_BACKEND", "jax")

from psnb._src.keras_models.distributed_keras import DistributedKeras, distribute

__all__ = ["DistributedKeras", "distribute"]
