"""Models in Keras 3 on parameter servers: fit, evaluate and predict as Keras does.

Not imported with ``psnb``; it needs Keras with JAX or torch: ``pip install psnb[keras]``. Which of
them computes is Keras's setting: the environment variable KERAS_BACKEND, before Keras is imported.
"""

try:
    from psnb._src.models.keras.distributed import DistributedKeras, distribute
except ModuleNotFoundError as error:
    if error.name not in ("keras", "jax", "torch"):
        raise
    raise ImportError("psnb.keras needs Keras: pip install 'psnb[keras]'") from error

__all__ = ["DistributedKeras", "distribute"]
