"""Models in JAX on parameter servers: parameters as trees, training steps, predictions.

Not imported with `psnb`; it needs JAX: ``pip install psnb[jax]``.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"psnb.jax needs JAX: pip install 'psnb[jax]' ({error})") from error

from psnb._src.jax_models import ForwardPass, TrainStep, TreeVariables, forward, step, variables

__all__ = ["ForwardPass", "TrainStep", "TreeVariables", "forward", "step", "variables"]
