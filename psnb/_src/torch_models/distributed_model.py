"""DistributedModel: a PyTorch module whose parameters are on servers.

Threads: each has its own copy of the module (without tables), so closures may run at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from psnb._src.export import Exported
from psnb._src.models import StepDescription
from psnb._src.parameters import Embedding, Variable
from psnb._src.shown_error import briefly
from psnb._src.torch_models.checked_state import IncompatibleKeys
from psnb._src.torch_models.described_call import OperationRecorder, described_call
from psnb._src.torch_models.device_copies import from_device
from psnb._src.torch_models.id_plan import PlannedIds
from psnb._src.torch_models.model_pass import ModelPass, computing
from psnb._src.torch_models.placed_module import PlacedModule
from psnb._src.torch_models.replica import Replica
from psnb._src.torch_models.replicas import Modes, Replicas
from psnb._src.torch_models.torch_export import exported
from psnb.errors import ConfigurationError, GradientError

_MOVING = {"to", "to_empty", "cpu", "cuda", "xpu", "mtia", "ipu"}
"""Methods of modules that move them to a device."""


class DistributedModel:
    """A module on parameter servers; made by `distribute`.

    Travels with closures, and works in the notebook. Thread-safe: each thread has a module of its
    own, so `train` and `eval` are for the thread that calls them.

    *Modes.* A closure begins in the modes that the model, and each module within it, had in the
    notebook when the closure was scheduled. What a closure changes in them ends with it.

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
    computes are asked for table by table. What computes with the weight of a table itself, such as
    a penalty or an output layer, gets all rows, and pushes the gradients of all.

    *Buffers* that are part of the state are on the servers, too, and so are parameters with
    ``requires_grad=False``, which forward may move (momentum encoders, target networks). What a
    step has moved is written together with its gradients, and so exactly once, by a rule that is
    right however late it comes. Running statistics of BatchNorm and InstanceNorm are moving
    averages: servers move what they have by then towards the batch's, ``(1 - momentum) * average +
    momentum * statistic``, so that a variance stays one. Integers count: what a step has added is
    added. All others are set, as a whole, to what the step has computed: the last one counts, and
    what others have made of them meanwhile is lost. (So are statistics that something else moves:
    a layer of another kind, a compiled one.) In mode `psnb.Sync` the results of a round are
    averaged. Sums that must not lose anything belong into integers, or into `psnb.metrics`; a
    position in a ring counts on, and is taken modulo the ring's length where it is used. Buffers of
    bools, and those that are no part of the state, stay on each worker, as do the weights of frozen
    embeddings, which must stay as they are.

    *No gradient* counts as a zero gradient, if another parameter of the same optimizer has one.

    Parameters
    ----------
    placed : PlacedModule
        The module without values, where they are, and where workers compute.
    plan : tuple of PlannedIds
        Where in the inputs ids are, as far as that is known.
    modes : dict, optional
        The modes of the modules within it; by default those of ``placed``.
    note_local : callable, optional
        Notes what identifies the values that are not on servers; stays in the notebook.
    """

    def __init__(
        self,
        placed: PlacedModule,
        plan: tuple[PlannedIds, ...] = (),
        modes: Modes | None = None,
        note_local: Callable[[Mapping[str, str]], object] | None = None,
    ) -> None:
        self._placed, self._plan = placed, plan
        self._replicas = Replicas(placed, modes)
        self._note_local = note_local

    def __reduce__(self) -> tuple[Any, ...]:
        return DistributedModel, (self._placed, self._plan, self._replicas.modes())

    def __psnb_referred__(self) -> tuple[object, ...]:
        """Return what may change of what travels: functions that capture it travel again then."""
        return self._placed.graph, *self._replicas.modes().values()

    def __repr__(self) -> str:
        placed = self._placed
        parameters = placed.values.parameters
        return (
            f"<psnb.torch.DistributedModel {type(placed.template).__name__}: {len(self.tables)} "
            f"tables, {len(parameters.places)} parameters in {len(parameters.variables)} variables>"
        )

    @property
    def tables(self) -> Mapping[str, Embedding]:
        """The tables, by the name of the parameter that each replaces."""
        return dict(self._placed.values.tables)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that hold all other parameters, one for each optimizer and dtype."""
        return self._placed.values.parameters.variables

    @property
    def module(self) -> nn.Module:
        """The module of this thread, with the parameters that the servers have; for its methods.

        Asked for in a step, it is as the model is when it is called, and its tables have rows::

            with model.step():
                model.module.loss(batch).backward()
        """
        replica = self._replicas.get()
        current = replica.current or self._pass(replica, training=False, learns=False)
        self._refresh(replica, current)
        return replica.module

    def __getattr__(self, name: str) -> Any:
        placed: PlacedModule | None = vars(self).get("_placed")
        if placed is None or name.startswith("__") or not hasattr(placed.template, name):
            raise briefly(
                AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            )
        way = (
            'workers compute where psnb.torch.distribute(module, strategy, device="cuda") says'
            if name in _MOVING
            else f"the module has: call model.module.{name} within `with model.step():`, to "
            "evaluate under torch.no_grad()"
        )
        raise briefly(AttributeError(f"{type(self).__name__} has no {name!r}; {way}"))

    @property
    def training(self) -> bool:
        """Whether this thread's module is in training mode."""
        return self._replicas.modes()[""]

    def train(self, mode: bool = True) -> DistributedModel:
        """Set training mode, as ``nn.Module.train``; for closures that are scheduled from now on.

        In a closure, for the rest of it.
        """
        self._replicas.train(mode)
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
        replica = self._replicas.get()
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
        return self._placed.state()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Replace values by those of a state; the state of optimizers stays as it is.

        A table of any id then has the rows of the state and no others.

        Parameters
        ----------
        state_dict : mapping
            From `state_dict`, or of the undistributed module.
        strict : bool
            Whether the keys must be those of the model; if not, what is in both is loaded.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``, as in torch.

        Raises
        ------
        GradientError
            If keys, shapes or kinds are not those of this model; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._placed, keys = self._placed.loaded(state_dict, strict=strict)
        self._replicas = Replicas(self._placed, self._replicas.modes())
        if self._note_local is not None:
            self._note_local(self._placed.values.local(self._placed.template))
        return keys

    def to_export(self, example: Any) -> Exported:
        """Return what `psnb.export` writes of it: its evaluation mode."""
        replica = Replica(replace(self._placed, device="cpu"))
        replica.load({each: torch.from_numpy(each.read()) for each in replica.variables})
        sources = self._placed.values.sources()
        return exported(replica.module, self.tables, example, sources)

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
            If the model was called, and nothing has a gradient at the end; if the module reads
            what an earlier step has left, which would be that of one worker; if there are gradients
            of parameters that were fetched before; or if this process does not have the device.
        GradientError
            If the loss or a gradient is not finite, ids are no integers, or a parameter changed its
            shape or was written to.
        IdOutOfRangeError
            If an id is outside its table.
        ServerLostError
            If a server is gone.
        """
        replica = self._replicas.get()
        if replica.current is not None:
            raise ConfigurationError(
                "a step within a step: gradients of several calls of the model and of several "
                "backward() add up within one `with model.step():`"
            )
        current = self._pass(replica, training=replica.module.training, learns=True)
        for name, given in (ids or {}).items():
            current.expect_ids(self._table(name), [torch.as_tensor(given)])
        replica.clear()
        replica.current = current
        try:
            with computing(current), replica.state.calling(replica.module):
                yield
            replica.check()
            current.check()
            self._push(replica, current)
        finally:
            replica.current = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Raises
        ------
        ConfigurationError
            If gradients would be computed outside of a step, where nothing pushes them.
        """
        replica = self._replicas.get()
        current = replica.current
        if current is None:
            if replica.module.training and torch.is_grad_enabled():
                raise ConfigurationError(
                    "the model was called for training outside of `with model.step():`, so its "
                    "gradients would go nowhere. For evaluation call model.eval() before, or use "
                    "torch.no_grad()"
                )
            current = self._pass(replica, training=False, learns=False)
        current.expect((args, kwargs), self._plan)
        self._refresh(replica, current)
        if replica.current is None:
            with computing(current), replica.state.calling(replica.module):
                result = replica.module(*args, **kwargs)
            replica.check()
            current.check()
        else:  # which looks at all that is called in it, and has the rows
            result = replica.module(*args, **kwargs)
        if (plan := current.learned()) is not None:
            self._plan = plan
        return result

    def describe(self, *args: Any, **kwargs: Any) -> StepDescription:
        """Return the operations of a step that calls the model so, in their order.

        First what is pulled from which servers; then the modules that are called, in each the
        operations of PyTorch with their dtypes and shapes, which are carried out once, without
        gradients; then what is pushed. Printed, it has a line for each. Nothing is written, and the
        modules of the threads stay as they are.

        Raises
        ------
        IdOutOfRangeError, ServerLostError
            As a call.
        """
        other = DistributedModel(self._placed, self._plan, self._replicas.modes())
        recorder = OperationRecorder()
        with torch.no_grad(), recorder.following(other.module.named_modules()), recorder:
            other(*args, **kwargs)
        values = self._placed.values
        of_rows = dict.fromkeys(values.tables.values())  # tables of several modules count once
        return described_call(recorder, of_rows, (*self.variables, *values.buffers.variables))

    def _pass(self, replica: Replica, *, training: bool, learns: bool) -> ModelPass:
        tables = self._placed.values.tables
        return ModelPass(
            tables, replica.device, training=training, learns=learns, owner=replica.owner
        )

    def _refresh(self, replica: Replica, current: ModelPass) -> None:
        """Fetch what is missing for a call."""
        if current.has_values:
            current.fetch(())
        else:
            replica.load(current.fetch(replica.variables))

    def _push(self, replica: Replica, current: ModelPass) -> None:
        of_parameters, of_rows = replica.gradients(), current.gradients()
        learned = of_parameters or of_rows or current.has_learned_of_no_ids()
        if not learned and current.expects_gradients:
            raise ConfigurationError(
                "the model was called in a step, and no parameter has a gradient at its end: "
                "loss.backward() belongs into the block. Call it under torch.no_grad() if nothing "
                "is to be learned"
            )
        if of_parameters and not current.has_values:
            raise ConfigurationError(
                "parameters have gradients, and were not fetched in this step: take model.module "
                "within the block, `with model.step(): model.module.loss(...).backward()`"
            )
        # What is on the CPU need not be moved; what numpy has no dtype for fits into float32.
        losses = [e.float() if e.element_size() < 4 else e for e in current.losses]
        there = {
            n: each for n, each in enumerate(losses) if each.device.type == replica.device.type
        }
        several: list[dict[Any, Tensor]] = [of_parameters, of_rows, *replica.moved(), there]
        several.append(replica.written())
        moved = iter(from_device([each for part in several for each in part.values()]))
        given, rows, *blends, found, written = (
            {key: next(moved) for key in part} for part in several
        )
        replica.check_unwritten(written)
        try:
            loss = sum(float(found.get(n, each)) for n, each in enumerate(losses))
            current.push({**replica.joined(given, *blends), **rows}, loss)
        except GradientError as error:
            named = [*replica.parameters(), *current.leaves()]
            bad = [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
            if not bad:
                raise GradientError(f"{current.summary()}. {error}") from error
            raise GradientError(
                f"the gradients of {', '.join(map(repr, bad[:5]))} ({len(bad)} of {len(named)} "
                f"parameters) are not finite; {current.summary()}. {error}"
            ) from error

    def _table(self, name: str) -> str:
        tables = self._placed.values.tables
        for each in (name, f"{name}.weight"):
            if each in tables:
                return each
        raise ConfigurationError(
            f"step(ids=): there is no table for {name!r}; there are {sorted(tables)}"
        )
