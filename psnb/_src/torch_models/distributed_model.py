"""DistributedModel: a PyTorch module whose parameters are on servers.

Threads: each has its own copy of the module (without tables), so closures may run at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from psnb._src.models import OptimizerChoice, Strategy
from psnb._src.parameters import Embedding, Variable
from psnb._src.torch_models.id_plan import PlannedIds
from psnb._src.torch_models.model_pass import ModelPass, computing
from psnb._src.torch_models.model_values import ModelValues, place_values
from psnb._src.torch_models.replica import Replica
from psnb._src.torch_models.split_module import split
from psnb._src.torch_models.worker_state import check_state, state_of
from psnb.errors import ConfigurationError, GradientError

_CHECKED = range(1, 4)
"""Calls of a thread's module after which it is looked for what it leaves behind."""


class DistributedModel:
    """A module on parameter servers; made by `distribute`.

    Travels with closures, and works in the notebook. Thread-safe: each thread has a module of its
    own, so `train` and `eval` are for the thread that calls them.

    In a closure, a step is one block; leaving it pushes the gradients of everything, and leaving it
    by an exception pushes nothing::

        with model.step():
            loss = criterion(model(batch["ids"], batch["x"]), batch["y"])
            loss.backward()

    The model may be called, and ``backward`` too, several times in a block: gradients add up.
    ``torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`` after ``backward`` clips all
    gradients, those of rows included. Under ``torch.autocast``, use bfloat16: gradients that a
    ``GradScaler`` scaled would be pushed as they are.

    For evaluation, call the model outside of a block, after `eval` or under ``torch.no_grad()``.
    Parameters are fetched for each call, and tables are left without a trace.

    Notes
    -----
    *Rows.* A step asks each server once and tells it once, if ids are inputs of the model or views
    of them (``ids[:, 3]``), which is learned from the first batch, or declared. Ids that the module
    computes are asked for table by table.

    *Buffers* that are part of the state (BatchNorm's running statistics) are on the servers, too: a
    step adds what it changed in them, together with its gradients, and so exactly once; in mode
    `psnb.Sync` the average of a round. This is right for running means and for counts; a buffer
    that is overwritten rather than moved is for one worker alone. Buffers of bools, and those that
    are no part of the state, stay on each worker, as do parameters with ``requires_grad=False``.

    *No gradient* counts as a zero gradient, if another parameter of the same optimizer has one.

    Parameters
    ----------
    template : torch.nn.Module
        The module with lookups in place of embeddings.
    values : ModelValues
        Where its values are.
    device : str
        Where workers compute.
    plan : tuple of PlannedIds
        Where in the inputs ids are, as far as that is known.
    """

    def __init__(
        self,
        template: nn.Module,
        values: ModelValues,
        device: str,
        plan: tuple[PlannedIds, ...] = (),
    ) -> None:
        self._template, self._values, self._device = template, values, device
        self._plan = plan
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return DistributedModel, (self._template, self._values, self._device, self._plan)

    def __repr__(self) -> str:
        parameters = self._values.parameters
        return (
            f"<psnb.torch.DistributedModel {type(self._template).__name__}: {len(self.tables)} "
            f"tables, {len(parameters.places)} parameters in {len(parameters.variables)} variables>"
        )

    @property
    def tables(self) -> Mapping[str, Embedding]:
        """The tables, by the name of the parameter that each replaces."""
        return dict(self._values.tables)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that hold all other parameters, one for each optimizer and dtype."""
        return self._values.parameters.variables

    @property
    def module(self) -> nn.Module:
        """The module of this thread; in a step its parameters are fresh."""
        replica = self._replica()
        if replica.current is not None:
            self._refresh(replica, replica.current)
        return replica.module

    @property
    def training(self) -> bool:
        """Whether this thread's module is in training mode."""
        return self._replica().module.training

    def train(self, mode: bool = True) -> DistributedModel:
        """Set training mode, as ``nn.Module.train``, for this thread and where it travels to."""
        self._template.train(mode)
        self._replica().module.train(mode)
        return self

    def eval(self) -> DistributedModel:
        """Set evaluation mode, as ``nn.Module.eval``; see `train`."""
        return self.train(False)

    def parameters(self) -> Iterator[Tensor]:
        """Yield all parameters that learn; in a step also the rows that it uses."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield `parameters` with their names; those of rows are of the parameters they are of."""
        replica = self._replica()
        if replica.current is not None:
            self._refresh(replica, replica.current)
        yield from replica.parameters()
        if replica.current is not None:
            yield from replica.current.leaves()

    def state_dict(self) -> OrderedDict[str, Any]:
        """Read the state, which the undistributed module loads with ``load_state_dict``.

        Raises
        ------
        ServerLostError
            If a server is gone.
        """
        return self._values.state(self._template)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace all values by those of a state; the state of optimizers stays as it is.

        Parameters
        ----------
        state_dict : mapping
            From `state_dict`, or of the undistributed module.

        Raises
        ------
        GradientError
            If keys or shapes are not those of this model; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._values.load(state_dict)
        own = self._template.state_dict()
        local = {key: value for key, value in state_dict.items() if key in own}
        local = {key: value for key, value in local.items() if self._values.is_local(key)}
        self._template.load_state_dict(local, strict=False)
        self._local = threading.local()  # modules are made anew

    @contextmanager
    def step(self, *, ids: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Make one training step; see the class.

        Parameters
        ----------
        ids : mapping, optional
            Ids that embeddings will be asked for, by the name of the embedding in the module: for
            those that the module computes, so that their rows come in the same round trip.

        Raises
        ------
        ConfigurationError
            If the model was called, and nothing has a gradient at the end; or if a call leaves
            tensors for the next one, which would be those of one worker.
        GradientError
            If a gradient is not finite.
        IdOutOfRangeError
            If an id is outside its table.
        ServerLostError
            If a server is gone.
        """
        replica = self._replica()
        if replica.current is not None:
            raise ConfigurationError(
                "a step within a step: gradients of several calls of the model and of several "
                "backward() add up within one `with model.step():`"
            )
        current = self._pass(training=replica.module.training, learns=True)
        for name, given in (ids or {}).items():
            current.expect_ids(self._table(name), [torch.as_tensor(given)])
        replica.clear()
        replica.current = current
        try:
            with computing(current):
                yield
            self._push(replica, current)
        finally:
            replica.current = None
            replica.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Raises
        ------
        ConfigurationError
            If gradients would be computed outside of a step, where nothing pushes them.
        """
        replica = self._replica()
        current = replica.current
        if current is None:
            if replica.module.training and torch.is_grad_enabled():
                raise ConfigurationError(
                    "the model was called for training outside of `with model.step():`, so its "
                    "gradients would go nowhere. For evaluation call model.eval() before, or use "
                    "torch.no_grad()"
                )
            current = self._pass(training=False, learns=False)
        current.expect((args, kwargs), self._plan)
        self._refresh(replica, current)
        replica.calls += 1
        # The first call may set what is None before; later ones do the same again.
        before = state_of(replica.module) if replica.calls in _CHECKED else {}
        with computing(current):
            result = replica.module(*args, **kwargs)
        check_state(replica.module, before)
        if (plan := current.learned()) is not None:
            self._plan = plan
        return result

    def _pass(self, *, training: bool, learns: bool) -> ModelPass:
        device = torch.device(self._device)
        return ModelPass(self._values.tables, device, training=training, learns=learns)

    def _refresh(self, replica: Replica, current: ModelPass) -> None:
        """Fetch what is missing for a call."""
        if current.has_values:
            current.fetch(())
        else:
            replica.load(current.fetch(replica.variables))

    def _push(self, replica: Replica, current: ModelPass) -> None:
        gradients = {**replica.gradients(), **current.gradients()}
        if not gradients and current.expects_gradients:
            raise ConfigurationError(
                "the model was called in a step, and no parameter has a gradient at its end: "
                "loss.backward() belongs into the block. Call it under torch.no_grad() if nothing "
                "is to be learned"
            )
        try:
            current.push({**gradients, **replica.changes()})
        except GradientError as error:
            named = [*replica.parameters(), *current.leaves()]
            bad = [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
            if not bad:
                raise
            raise GradientError(
                f"the gradients of {', '.join(map(repr, bad[:5]))} ({len(bad)} of {len(named)} "
                f"parameters) are not finite; {current.summary()}. {error}"
            ) from error

    def _table(self, name: str) -> str:
        for each in (name, f"{name}.weight"):
            if each in self._values.tables:
                return each
        raise ConfigurationError(
            f"step(ids=): there is no table for {name!r}; there are {sorted(self._values.tables)}"
        )

    def _replica(self) -> Replica:
        found: Replica | None = getattr(self._local, "replica", None)
        if found is None:
            found = Replica(self._template, self._values, torch.device(self._device))
            self._local.replica = found
        return found


def distribute(
    module: nn.Module,
    strategy: Strategy,
    *,
    sparse: OptimizerChoice | None = None,
    dense: OptimizerChoice | None = None,
    name: str | None = None,
    device: str | torch.device = "cpu",
) -> DistributedModel:
    """Put a module on parameter servers.

    Its ``nn.Embedding`` and ``nn.EmbeddingBag`` become tables with the same initial rows, and
    `psnb.torch.Embedding` tables of any id; embeddings that share their weight share a table. All
    other parameters become parts of few variables. The module itself stays as it is.

    Parameters
    ----------
    module : torch.nn.Module
        Any module that can be pickled.
    strategy : ParameterServerStrategy
        Whose servers.
    sparse : Optimizer or callable
        What the servers do with the gradients of rows; or a function from the name of a parameter
        (``"ads.weight"``) to an optimizer. Only rows of the batch change: no others decay, or move
        by their momentum.
    dense : Optimizer or callable
        The same for all other parameters. ``clipnorm`` counts the norm of all parameters with the
        same optimizer together.
    name : str, optional
        Before the names of tables and variables on the servers; by default that of the module's
        class. Unique within the strategy.
    device : str or torch.device
        Where workers compute. Rows are moved there in one copy.

    Returns
    -------
    DistributedModel
        A handle, for the notebook and for closures.

    Raises
    ------
    ConfigurationError
        If an embedding has ``max_norm``, a parameter is of half precision, there is no optimizer
        for one, or a name is taken; nothing was placed.
    SerializationError
        If the module cannot be pickled; the message names the part that cannot.
    ServerLostError
        If a server is gone.
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"psnb.torch.distribute: expected a torch.nn.Module, found {type(module).__name__}"
        )
    parts = split(module)
    values = place_values(strategy, parts, sparse, dense, name or type(module).__name__)
    return DistributedModel(parts.template, values, str(device))
