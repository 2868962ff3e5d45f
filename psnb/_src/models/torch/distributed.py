"""DistributedModel: a PyTorch module whose parameters are on servers.

Threads: each has its own copy of the module (without tables), so closures may run in parallel.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from psnb._src.client.embedding import Embedding
from psnb._src.client.variable import Variable
from psnb._src.models.export.exported import Exported
from psnb._src.models.flat_variables import OptimizerChoice, check_strategy
from psnb._src.models.placing import note_local, place_model
from psnb._src.models.step_description import StepDescription
from psnb._src.models.table_options import TableOptions
from psnb._src.models.torch.buffers import check_averages, not_finite
from psnb._src.models.torch.description import OperationRecorder, described_call
from psnb._src.models.torch.export import exported
from psnb._src.models.torch.model_pass import ModelPass, PlannedIds, computing
from psnb._src.models.torch.module_graph import keep_here
from psnb._src.models.torch.optimizers import (
    Followed,
    TorchOptimizers,
    take_over,
    trained_by,
)
from psnb._src.models.torch.placed import IncompatibleKeys, PlacedModule
from psnb._src.models.torch.replica import Flags, Replica, Replicas
from psnb._src.models.torch.split import local_values, split
from psnb._src.models.torch.tensors import from_device
from psnb._src.protocol.modes import Sync
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb._src.utils.text import shown
from psnb._src.utils.tracebacks import hide_internal_frames
from psnb.errors import ConfigurationError, InvalidArrayError

_MOVING = {"to", "to_empty", "cpu", "cuda", "xpu", "mtia", "ipu"}
"""Methods of modules that move them to a device."""


class DistributedModel:
    """A module on parameter servers; made by `psnb.torch.distribute`.

    Travels with closures, and works in the notebook. Thread-safe: each thread has a module of its
    own, so `train` and `eval` are for the thread that calls them.

    *Modes.* A closure begins in the modes that the model, and each module within it, had in the
    notebook when the closure was scheduled. A closure's changes of them end with it.

    In a closure, a step is one block; leaving it pushes the gradients of everything, and leaving it
    by an exception pushes nothing::

        with model.step():
            loss = criterion(model(batch["ids"], batch["x"]), batch["y"])
            loss.backward()

    The model may be called, and ``backward`` too, several times in a block: gradients add up.
    ``torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`` after ``backward`` clips all
    gradients, including rows'. Under ``torch.autocast``, use bfloat16: gradients that a
    ``GradScaler`` has scaled would be pushed scaled.

    For evaluation, call the model outside of a block, after `eval` or under ``torch.no_grad()``.
    Parameters are fetched for each call, and tables are left without a trace.

    Notes
    -----
    *Rows.* A step pulls from each server once and pushes once, if ids are inputs of the model or
    views of them (``ids[:, 3]``), which is learned from the first batch, or declared. Rows of ids
    that the module computes are pulled table by table. Computations with the weight of a table
    itself, such as a penalty or an output layer, get all rows, and push the gradients of all.

    *Buffers* that are part of the state are on the servers, too, and so are parameters with
    ``requires_grad=False``, which forward may move (momentum encoders, target networks). A step's
    changes of them are written together with its gradients, and so exactly once, by a rule that is
    right however late it comes. Running statistics of BatchNorm and InstanceNorm are moving
    averages: servers move their present values towards the batch's, ``(1 - momentum) * average +
    momentum * statistic``, so that a variance stays one. Integers count: a step's increment is
    added. Bools that a step has changed are set, one by one. All others are set, as a whole, to the
    step's values: the last one counts, and changes of others meanwhile are lost. (So are statistics
    that another kind of layer moves, or a compiled one.) In mode `psnb.Sync` the results of a round
    are averaged, and a bool is true if a step of the round has set it. Sums that must not lose
    anything belong into integers, or into `psnb.metrics`; a position in a ring counts on, and is
    taken modulo the ring's length where it is used. Buffers that are not part of the state stay on
    each worker, as do the weights of frozen embeddings and frozen parameters of integers, which
    must stay as they are. A buffer keeps its shape.

    *No gradient* is not a gradient of zeros. As with PyTorch alone, a parameter whose ``grad`` is
    None at the end of a step stays as it is, with the state of its optimizer and its count of
    steps: if the loss does not depend on it, or it is frozen. ``requires_grad`` is set as in
    PyTorch, of `parameters`, of ``model.module``, of the module that was distributed, or with
    `requires_grad_`: in the notebook for closures that are scheduled from now on, in a closure for
    the rest of it. A parameter that was frozen when it was distributed may learn later if an
    optimizer of torch has it, except embeddings; else its gradient is refused. (Schedules count the
    updates of a variable, whichever of its parameters had a gradient.)

    Parameters
    ----------
    placed : PlacedModule
        The module without values, where they are, and where workers compute.
    plan : tuple of PlannedIds
        Where ids are in the inputs, as far as that is known.
    flags : Flags, optional
        Its modes, and what does not learn; by default those of ``placed``.
    note_local : callable, optional
        Notes an identification of the values that are not on servers; stays in the notebook.
    followed : Followed, optional
        The module and the optimizers, as far as the notebook may set them; stays there.
    """

    def __init__(
        self,
        placed: PlacedModule,
        plan: tuple[PlannedIds, ...] = (),
        flags: Flags | None = None,
        note_local: Callable[[Mapping[str, str]], object] | None = None,
        followed: Followed | None = None,
    ) -> None:
        self._placed, self._plan = placed, plan
        self._replicas = Replicas(placed, flags)
        self._note_local, self._followed = note_local, followed

    def __reduce__(self) -> tuple[Any, ...]:
        self._follow()
        return DistributedModel, (self._placed, self._plan, self._replicas.flags())

    def __psnb_referred__(self) -> tuple[object, ...]:
        """Return the changeable part of its pickled form, after which functions are sent again."""
        self._follow()
        flags = self._replicas.flags()
        return self._placed.graph, *flags.modes.values(), *sorted(flags.frozen)

    def __repr__(self) -> str:
        placed = self._placed
        parameters = placed.values.parameters
        return (
            f"<psnb.torch.DistributedModel {type(placed.template).__name__}: {len(self.tables)} "
            f"tables, {len(parameters.places)} parameters in {len(parameters.variables)} variables>"
        )

    @property
    def tables(self) -> Mapping[str, Embedding]:
        """The tables, by the name of the parameter or module that each stands for.

        ``users.weight`` for a ``torch.nn.Embedding`` that the module calls ``users``; ``users`` for
        a `psnb.torch.Embedding`.
        """
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
            raise hide_internal_frames(
                AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            )
        way = (
            'workers compute where psnb.torch.distribute(module, strategy, device="cuda") says'
            if name in _MOVING
            else f"the module has: call model.module.{name} within `with model.step():`, to "
            "evaluate under torch.no_grad()"
        )
        raise hide_internal_frames(AttributeError(f"{type(self).__name__} has no {name!r}; {way}"))

    @property
    def training(self) -> bool:
        """Whether this thread's module is in training mode."""
        return self._replicas.flags().modes[""]

    def train(self, mode: bool = True) -> DistributedModel:
        """Set training mode, as ``nn.Module.train``; for closures that are scheduled from now on.

        In a closure, for the rest of it.
        """
        self._replicas.train(mode)
        return self

    def eval(self) -> DistributedModel:
        """Set evaluation mode, as ``nn.Module.eval``; see `train`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> DistributedModel:
        """Freeze the whole model, or let all of it learn, as ``nn.Module.requires_grad_``.

        In the notebook for closures that are scheduled from now on, in a closure for the rest of
        it. A frozen model passes gradients on, and its own parameters stay as they are.
        """
        self._follow()
        replica = self._replicas.get()
        replica.set_learning(requires_grad)
        self._replicas.freeze(replica.flags().frozen)
        return self

    def parameters(self) -> Iterator[Tensor]:
        """Yield all parameters that may learn; in a step also the rows that it uses."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield `parameters` with their names; rows have the names of their parameters."""
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
        """Replace values by a state's; the state of optimizers stays as it is.

        A table of any id then has the rows of the state and no others.

        Parameters
        ----------
        state_dict : mapping
            From `state_dict`, or of the undistributed module.
        strict : bool
            Whether the keys must be the model's; if not, common keys are loaded.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``, as in torch.

        Raises
        ------
        InvalidArrayError
            If keys, shapes or kinds are not this model's, or a table has a bound and the state more
            rows; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        self._placed, keys = self._placed.loaded(state_dict, strict=strict)
        self._replicas = Replicas(self._placed, self._replicas.flags())
        if self._note_local is not None:
            self._note_local(local_values(self._placed.template, self._placed.local))
        return keys

    def to_export(self, example: Any) -> Exported:
        """Return what `psnb.export` writes of it: its evaluation mode."""
        replica = Replica(replace(self._placed, device="cpu"))
        replica.load({each: torch.from_numpy(each.read()) for each in replica.variables})
        return exported(replica.module, self.tables, example, self._placed.sources())

    @contextmanager
    def step(
        self, *, ids: Mapping[str, Any] | None = None, weight: float | None = None
    ) -> Iterator[None]:
        """Make one training step; see the class.

        Parameters
        ----------
        ids : mapping, optional
            Ids that embeddings will be asked for, by the name of the embedding in the module: for
            ids that the module computes, so that their rows come in the same round trip.
        weight : float, optional
            In mode `psnb.Sync`, the batch's weight in its round: how many values its loss is the
            mean of. By default the number of examples that the model was called with, that is the
            length of its first input; give the number of tokens where the loss is a mean of these
            (``weight=mask.sum()``), and where ``model.module`` was called in another way.

        Raises
        ------
        ConfigurationError
            If the model was called, and nothing has a gradient at the end; if the module reads
            state that an earlier step has left, which would be one worker's; if there are gradients
            of parameters that were fetched before; or if this process does not have the device.
        InvalidArrayError
            If the loss or a gradient is not finite, ids are not integers, or a parameter changed
            its shape or was written to.
        IdOutOfRangeError
            If an id is outside its table.
        ServerLostError
            If a server is gone.
        """
        self._follow()
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
            with self._calling(replica, current):
                yield
            self._push(replica, current, None if weight is None else float(weight))
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
            if replica.module.training and torch.is_grad_enabled() and replica.learns():
                raise ConfigurationError(
                    "the model was called for training outside of `with model.step():`, so its "
                    "gradients would go nowhere. For evaluation call model.eval() before, or use "
                    "torch.no_grad(); of a model that only passes gradients on, "
                    "model.requires_grad_(False)"
                )
            current = self._pass(replica, training=False, learns=False)
        current.expect((args, kwargs), self._plan)
        self._refresh(replica, current)
        if replica.current is None:
            with self._calling(replica, current):
                result = replica.module(*args, **kwargs)
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
        other = DistributedModel(self._placed, self._plan, self._replicas.flags())
        recorder = OperationRecorder()
        with torch.no_grad(), recorder.following(other.module.named_modules()), recorder:
            other(*args, **kwargs)
        values = self._placed.values
        of_rows = dict.fromkeys(values.tables.values())  # tables of several modules count once
        return described_call(recorder, of_rows, values.flat.variables)

    @contextmanager
    def _calling(self, replica: Replica, current: ModelPass) -> Iterator[None]:
        """Let the module be called with a pass, and check at the end what that has left."""
        with computing(current), replica.state.calling(replica.module):
            yield
        replica.check()
        current.check()

    def _pass(self, replica: Replica, *, training: bool, learns: bool) -> ModelPass:
        tables = self._placed.values.tables
        return ModelPass(
            tables, replica.device, training=training, learns=learns, owner=replica.owner
        )

    def _refresh(self, replica: Replica, current: ModelPass) -> None:
        if current.has_values:
            current.fetch(())
        else:
            replica.load(current.fetch(replica.variables))

    def _follow(self) -> None:
        """Take over what the notebook has set of the module and the optimizers that were given."""
        if self._followed is not None:
            if (frozen := self._followed.frozen(self._replicas.flags().frozen)) is not None:
                self._replicas.freeze(frozen)
            self._followed.settle()

    def _push(self, replica: Replica, current: ModelPass, weight: float | None) -> None:
        of_parameters, of_rows = replica.gradients(), current.gradients()
        # Also of tables in which no id was looked up.
        learned = of_parameters or any(each.grad is not None for _, each in current.leaves())
        if not learned and current.expects_gradients and replica.learns():
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
        # Tensors on the CPU need not be moved; dtypes that numpy lacks fit into float32.
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
        blends.append(replica.rewritten(written))
        try:
            loss = sum(found.get(n, each).item() for n, each in enumerate(losses))
            current.push({**replica.joined(given, *blends), **rows}, loss, weight)
        except InvalidArrayError as error:
            named = [*replica.parameters(), *current.leaves()]
            bad = [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]
            terms = blends[1]
            wild = [name for name, each in terms.items() if not np.isfinite(each).all()]
            if not bad and wild and math.isfinite(loss):
                raise not_finite(wild) from error
            if not bad:
                raise InvalidArrayError(f"{current.summary()}. {error}") from error
            raise InvalidArrayError(
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


def distribute(
    module: nn.Module,
    strategy: ParameterServerStrategy,
    *,
    optimizer: TorchOptimizers | None = None,
    sparse: OptimizerChoice | None = None,
    dense: OptimizerChoice | None = None,
    tables: TableOptions | None = None,
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
    the model: captured parts of the module raise where they are used.

    On a strategy of `psnb.attach` or `psnb.resume`, the module *adopts* the parameters of the model
    that had its name, if names, shapes and dtypes are the module's: they stay as they are, with the
    state of their optimizers, and training continues; a warning says so. The module's own values
    are not used, except values on no server (frozen embeddings), which must be equal.

    Parameters
    ----------
    module : torch.nn.Module
        Any module that can be pickled.
    strategy : ParameterServerStrategy
        Whose servers.
    optimizer : torch.optim.Optimizer or list of them, optional
        Taken over with hyperparameters and groups of parameters, before its first step: SGD,
        Adagrad, Adam, AdamW, RMSprop, and SparseAdam for tables. Servers then compute the same as
        torch's step; in a training step there is no ``optimizer.step()``. See below.
    sparse : Optimizer or callable
        Not needed to adopt: servers keep their optimizers, with the hyperparameters that they have
        now. One of another kind is refused, and a warning says which hyperparameters are others.
        What the servers do with the gradients of rows; or a function from the name of a parameter
        (``"ads.weight"``) to an optimizer. Only rows of the batch change: no others decay, or move
        by their momentum. With ``optimizer``, for tables that it does not have.
    dense : Optimizer or callable
        The same for all other parameters. ``clipnorm`` counts the norm of all parameters with the
        same optimizer together. With ``optimizer``, for parameters that it does not have.
    tables : mapping, optional
        How servers keep rows, by the name of a table (``"ads.weight"`` for a ``torch.nn.Embedding``
        that the module calls ``ads``; ``"users"`` for a `psnb.torch.Embedding`): arguments of
        `ParameterServerStrategy.embedding`, such as ``{"ads.weight": {"dtype": "bfloat16"}}``.
        ``dtype`` (in half width), ``slot_dtype`` and ``storage`` are for all; for
        `psnb.torch.Embedding` there are ``max_rows``, ``max_bytes``, ``evict``, ``time_to_live``,
        ``admission`` and ``accessor``, too. Adopted tables stay as they are: what is given of one
        must be so there.
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
        parameters of another module; ``tables`` has a name that is no table's, or more rows are to
        be placed than ``max_rows`` allows; a name is taken; parameters to adopt do not fit, which
        the message lists; or there is no such kind of device. Nothing was placed.
    SerializationError
        If the module cannot be pickled; the message names the part that cannot.
    ServerLostError
        If a server is gone.

    Notes
    -----
    psnb's own optimizers have defaults of their own, what ``optimizer`` takes over has torch's:

    ========  ==========================================  ==========================================
    ..        psnb                                        torch
    ========  ==========================================  ==========================================
    SGD       ``SGD(0.01)``, ``Momentum(0.01, 0.9)``      rate 0.001, momentum 0
    Adagrad   rate 0.01, accumulator from 0,              rate 0.01, accumulator from 0,
              ``sqrt(a) + 1e-7``                          ``sqrt(a) + 1e-10``
    Adam      rate 0.001, ``sqrt(v̂) + 1e-8``,             the same; decay is added to the gradient
              decay decoupled                             (AdamW: decoupled, 0.01)
    RMSprop   rate 0.001, ``rho=0.9``,                    rate 0.01, ``alpha=0.99``,
              ``sqrt(s + 1e-7)``                          ``sqrt(s) + 1e-8``
    ========  ==========================================  ==========================================

    Rows of tables change only with batches that have them: torch alone would move the others, too,
    by momentum, moments and decay, unless it is ``SparseAdam``; with SGD and Adagrad without decay
    there is no difference. Rows that come back have their former moments. Corrections and decays of
    rates count a table's updates, on each server. ``foreach``, ``fused`` and ``capturable`` change
    no numbers, and nothing here.
    """
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"psnb.torch.distribute: expected a torch.nn.Module, found {type(module).__name__}"
        )
    check_strategy("psnb.torch.distribute", strategy)
    try:
        where = str(torch.device(device))
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"device={shown(device)} is not a device of PyTorch, such as 'cpu' or 'cuda': {error}"
        ) from error
    parts = split(module, trained_by(optimizer))
    wanted, choices, several, places = take_over(optimizer, module, parts, sparse, dense)
    called = name or type(module).__name__
    if not isinstance(strategy.mode, Sync):
        check_averages(parts.graph.module)
    values = place_model(
        strategy, called, wanted, **choices, adopt=adopt, tables=tables, moved="buffers"
    )
    keep_here(module, "the module that psnb.torch.distribute was given")
    note = partial(note_local, strategy.__psnb_models__, called)
    followed = Followed(module, several, places, values)
    placed = PlacedModule(parts.graph, values, parts.fixed, parts.names, parts.local, where)
    return DistributedModel(placed, note_local=note, followed=followed)
