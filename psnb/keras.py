"""Models in Keras 3 on parameter servers: fit, evaluate and predict as Keras does.

Not imported with `psnb`; it needs Keras and JAX: ``pip install psnb[keras]``.
"""

try:
    from psnb._src.keras_models import DistributedKeras, distribute
except ModuleNotFoundError as error:
    if error.name not in ("keras", "jax"):
        raise
    raise ImportError("psnb.keras needs Keras: pip install 'psnb[keras]'") from error

__all__ = ["DistributedKeras", "distribute"]
