"""Models in JAX on parameter servers; nothing but `psnb.jax` imports this, or JAX for it."""

from psnb._src.jax_models.forward_pass import ForwardPass, forward
from psnb._src.jax_models.train_step import TrainStep, step
from psnb._src.jax_models.tree_variables import TreeVariables, variables

__all__ = ["ForwardPass", "TrainStep", "TreeVariables", "forward", "step", "variables"]
