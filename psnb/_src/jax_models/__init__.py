"""Models in JAX on parameter servers; nothing but `psnb.jax` imports this, or JAX for it."""

from psnb._src.jax_models.batch_function import batch_function
from psnb._src.jax_models.forward_pass import ForwardPass, forward
from psnb._src.jax_models.jax_export import exported
from psnb._src.jax_models.optax_optimizer import optimizer
from psnb._src.jax_models.pipeline_part import PipelinePart, stage
from psnb._src.jax_models.train_step import TrainStep, step
from psnb._src.jax_models.tree_variables import TreeVariables, by_name, variables

__all__ = [
    "ForwardPass",
    "PipelinePart",
    "TrainStep",
    "TreeVariables",
    "batch_function",
    "by_name",
    "exported",
    "forward",
    "optimizer",
    "stage",
    "step",
    "variables",
]
