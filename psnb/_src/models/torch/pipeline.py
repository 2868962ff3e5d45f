"""ModuleStage: a part of a PyTorch model, for a pipeline of several.

Threads: the closures of a worker may share one; each has its own module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from xxhash import xxh3_64

from psnb._src.models.torch.distributed import DistributedModel
from psnb._src.models.torch.tensors import as_torch, tensor_of
from psnb.errors import ConfigurationError


class ModuleStage:
    """A part of a model; made by `psnb.torch.stage`, used by `psnb.Section`.

    `backward` and `train` compute the stage once more from its inputs, with the random numbers that
    it had, so nothing has to stay on the worker that computed it first.
    """

    def __init__(self, model: DistributedModel) -> None:
        self._model = model
        self.__qualname__ = f"stage of {model!r}"

    def __repr__(self) -> str:
        return f"<psnb.torch {self.__qualname__}>"

    def forward(self, inputs: Any) -> Any:
        """Return the stage's outputs, with numpy arrays."""
        with torch.no_grad(), _drawing_for(inputs):
            outputs = self._model(as_torch(inputs))
        return tree_map(lambda e: e.cpu().numpy() if isinstance(e, Tensor) else e, outputs)

    def backward(self, inputs: Any, gradient: Sequence[np.ndarray], scale: float) -> Any:
        """Push the gradients of the parameters, and return the inputs' gradient.

        Parameters
        ----------
        inputs : object
            As `forward` had them.
        gradient : sequence of numpy.ndarray
            That of the outputs: of each tensor of floats, in their order.
        scale : float
            By what the gradients of the parameters are multiplied.

        Returns
        -------
        list of numpy.ndarray
            That of the inputs, likewise.
        """
        return self._trained(inputs, gradient, scale)[1]

    def train(self, inputs: Any, scale: float) -> tuple[float, int, list[np.ndarray]]:
        """Do what `backward` does where the stage is the last, and returns the loss.

        Returns
        -------
        tuple
            The loss; how many examples there were; the gradient of the inputs.
        """
        loss, back = self._trained(inputs, [np.ones((), np.float32)], scale)
        examples = next((len(each) for each in tree_leaves(inputs) if np.ndim(each)), 1)
        return loss.item(), examples, back

    def _trained(
        self, inputs: Any, gradient: Sequence[np.ndarray], scale: float
    ) -> tuple[Any, list[np.ndarray]]:
        leaves: list[Tensor] = []

        def leaf(each: Any) -> Any:
            if not isinstance(each, np.ndarray) or each.dtype.kind != "f":
                return each
            leaves.append(tensor_of(each).requires_grad_())
            return leaves[-1]

        given = as_torch(tree_map(leaf, inputs))
        with self._model.step():
            with _drawing_for(inputs):
                outputs = self._model(given)
            tensors = [each for each in tree_leaves(outputs) if isinstance(each, Tensor)]
            found = [each for each in tensors if each.is_floating_point()]
            by = [
                torch.as_tensor(each, dtype=of.dtype, device=of.device) * scale
                for each, of in zip(gradient, found, strict=True)
            ]
            # A result of no parameter and no float has no gradient.
            learns = [number for number, each in enumerate(found) if each.requires_grad]
            torch.autograd.backward([found[n] for n in learns], [by[n] for n in learns])
        back = [torch.zeros_like(e) if e.grad is None else e.grad / scale for e in leaves]
        return outputs, [each.numpy() for each in back]


def stage(model: DistributedModel) -> ModuleStage:
    """Make a part of a model, for a pipeline: ``psnb.Section([first, second, last])``.

    Parameters
    ----------
    model : DistributedModel
        `distribute` of the part's module, which has parameters. Its ``forward`` takes one argument:
        the batch in the first stage, with tensors as `as_torch` makes them, and what the stage
        before has returned in the others: tensors in dicts, lists and tuples. Gradients go back
        through tensors of floats (``detach()`` in ``forward`` what a loss takes without one, such
        as weights of examples); others, such as labels that are integers, pass along. The last
        stage returns the loss, a number.

    Returns
    -------
    ModuleStage
        For `psnb.Section`.

    Raises
    ------
    ConfigurationError
        If it is not a distributed model.
    """
    if not isinstance(model, DistributedModel):
        raise ConfigurationError(
            "psnb.torch.stage takes what psnb.torch.distribute(module, strategy, ...) returns, "
            f"found {type(model).__name__}"
        )
    return ModuleStage(model)


@contextmanager
def _drawing_for(inputs: Any) -> Iterator[None]:
    """Draw random numbers that are the same whenever these inputs are computed."""
    digest = xxh3_64()
    for each in tree_leaves(inputs):
        if isinstance(each, np.ndarray) and each.dtype.kind in "biuf":
            digest.update(np.ascontiguousarray(each).data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(digest.intdigest())
        yield
