"""distribute: puts a PyTorch module on parameter servers."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from psnb._src.models import OptimizerChoice, Strategy, check_strategy, note_local
from psnb._src.torch_models.distributed_model import DistributedModel
from psnb._src.torch_models.model_values import place_values
from psnb._src.torch_models.module_graph import keep_here
from psnb._src.torch_models.placed_module import PlacedModule, device_name
from psnb._src.torch_models.split_module import split
from psnb._src.torch_models.torch_optimizers import TorchOptimizers, take_over
from psnb.errors import ConfigurationError


def distribute(
    module: nn.Module,
    strategy: Strategy,
    *,
    optimizer: TorchOptimizers | None = None,
    sparse: OptimizerChoice | None = None,
    dense: OptimizerChoice | None = None,
    name: str | None = None,
    device: str | torch.device = "cpu",
    adopt: bool | None = None,
) -> DistributedModel:
    """Put a module on parameter servers, or take up what the strategy has of it.

    Its ``nn.Embedding`` and ``nn.EmbeddingBag`` become tables with the same initial rows, and
    `psnb.torch.Embedding` tables of any id; embeddings that share their weight share a table. All
    other parameters become parts of few variables, and so do buffers: moving averages (BatchNorm)
    are averaged on the servers, integers are added to, others are set, which is right however late
    a step's update comes; see `DistributedModel`. The module itself stays as it is, so closures use
    the model: what they have captured of the module raises where it is used.

    On a strategy of `psnb.attach` or `psnb.resume`, the module *adopts* the parameters of the model
    that had its name, if names, shapes and dtypes are those of the module: they stay as they are,
    with the state of their optimizers, and training goes on; a warning says so. The module's own
    values are not used, but for what is on no server (frozen embeddings), which must be equal.

    Parameters
    ----------
    module : torch.nn.Module
        Any module that can be pickled.
    strategy : ParameterServerStrategy
        Whose servers.
    optimizer : torch.optim.Optimizer or list of them, optional
        Taken over with hyperparameters and groups of parameters, before its first step: SGD,
        Adagrad, Adam, AdamW, RMSprop, and SparseAdam for tables. Servers then compute what torch's
        step would; in a training step there is no ``optimizer.step()``. See below.
    sparse : Optimizer or callable
        Not needed to adopt: servers keep their optimizers, with the hyperparameters that they have
        now. One of another kind is refused, and a warning says which hyperparameters are others.
        What the servers do with the gradients of rows; or a function from the name of a parameter
        (``"ads.weight"``) to an optimizer. Only rows of the batch change: no others decay, or move
        by their momentum. With ``optimizer``, for tables that it does not have.
    dense : Optimizer or callable
        The same for all other parameters. ``clipnorm`` counts the norm of all parameters with the
        same optimizer together. With ``optimizer``, for parameters that it does not have.
    name : str, optional
        Before the names of tables and variables on the servers; by default that of the module's
        class. Unique within the strategy.
    device : str or torch.device
        Where workers compute, ``"cuda"`` for instance; the notebook needs it only to call the
        model. A step moves what it has fetched there in one copy, and the gradients back in
        another one. Leave ids on the CPU, and move the other inputs: ``batch["x"].to("cuda")``.
    adopt : bool, optional
        True: there must be a model to adopt, also one that this process has distributed already;
        both handles then train the same parameters. False: there must be none. By default one from
        before is adopted, one of this process is refused, and where there is none, the module is
        placed with its own values.

    Returns
    -------
    DistributedModel
        A handle, for the notebook and for closures.

    Raises
    ------
    ConfigurationError
        If an embedding has ``max_norm``, or a bag ``scale_grad_by_freq``; a parameter is of half
        precision or has no shape yet, or is referred to in a way that cannot be followed; a
        BatchNorm has ``momentum=None`` in another mode than `psnb.Sync`; there is no optimizer for
        a parameter; torch's has been used, is of another kind, or has a scheduler, hooks or
        parameters of another module; a name is taken; what is to be adopted does not fit, which
        the message lists; or there is no such kind of device. Nothing was placed.
    SerializationError
        If the module cannot be pickled; the message names the part that cannot.
    ServerLostError
        If a server is gone.

    Notes
    -----
    psnb's own optimizers have TensorFlow's defaults, what ``optimizer`` takes over has torch's:

    ========  ==========================================  ==========================================
    ..        psnb                                        torch
    ========  ==========================================  ==========================================
    SGD       ``SGD(0.01)``, ``Momentum(0.01, 0.9)``      rate 0.001, momentum 0
    Adagrad   rate 0.01, accumulator from 0.1,            rate 0.01, accumulator from 0,
              ``sqrt(a) + 1e-7``                          ``sqrt(a) + 1e-10``
    Adam      rate 0.001, ``sqrt(v̂) + 1e-8``,             the same; decay is added to the gradient
              decay decoupled                             (AdamW: decoupled, 0.01)
    RMSprop   rate 0.001, ``rho=0.9``,                    rate 0.01, ``alpha=0.99``,
              ``sqrt(s + 1e-7)``                          ``sqrt(s) + 1e-8``
    ========  ==========================================  ==========================================

    So ``psnb.Adagrad(0.1)`` takes much smaller first steps than ``torch.optim.Adagrad(...,
    lr=0.1)``.

    Rows of tables change only with batches that have them: torch alone would move the others, too,
    by momentum, moments and decay, unless it is ``SparseAdam``; with SGD and Adagrad without decay
    there is no difference. Moments of rows that come back are those that they had. Corrections and
    decays of rates count a table's updates, on each server. ``foreach``, ``fused`` and
    ``capturable`` change no numbers, and nothing here.
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"psnb.torch.distribute: expected a torch.nn.Module, found {type(module).__name__}"
        )
    check_strategy("psnb.torch.distribute", strategy)
    where = device_name(device)
    parts = split(module)
    if optimizer is not None:
        sparse, dense = take_over(optimizer, module, parts, sparse, dense)
    called = name or type(module).__name__
    values = place_values(strategy, parts, sparse, dense, called, adopt)
    keep_here(module, "the module that psnb.torch.distribute was given")
    note = partial(note_local, strategy.__psnb_models__, called)
    return DistributedModel(PlacedModule(parts.graph, values, where), note_local=note)
