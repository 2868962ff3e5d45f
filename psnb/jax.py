"""Models in JAX on parameter servers: parameters as trees, training steps, predictions.

Not imported with ``psnb``; it needs JAX: ``pip install psnb[jax]``.
"""

try:
    from psnb._src.models.jax.optimizer import optimizer
    from psnb._src.models.jax.step import ForwardPass, PipelinePart, TrainStep, forward, stage, step
    from psnb._src.models.jax.variables import TreeVariables, variables
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError("psnb.jax needs JAX: pip install 'psnb[jax]'") from error

__all__ = [
    "ForwardPass",
    "PipelinePart",
    "TrainStep",
    "TreeVariables",
    "forward",
    "optimizer",
    "stage",
    "step",
    "variables",
]
