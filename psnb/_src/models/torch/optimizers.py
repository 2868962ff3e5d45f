"""PyTorch's optimizers as psnb's, which the servers apply, and what is set in them later.

Only in the notebook. A scheduler sets rates in optimizers, and so may the user; servers apply their
own. So whenever a closure is scheduled, changed settings are set on the servers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from psnb._src.client.handles import Handle
from psnb._src.models.flat_variables import OptimizerChoice, optimizer_for
from psnb._src.models.placing import ModelValues, WantedModel
from psnb._src.models.torch.replica import frozen_in
from psnb._src.models.torch.split import SplitModule
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, Momentum, RMSProp
from psnb.errors import ConfigurationError

TorchOptimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""One of torch's, or several that share a module's parameters."""

DOOR = "psnb.torch.distribute(optimizer=)"

_KINDS = ("SGD", "Adagrad", "Adam", "AdamW", "SparseAdam", "RMSprop")


class _Taken(NamedTuple):
    """The optimizer of a parameter, and of which of torch's kinds it was.

    And which optimizer and group it was, among the given ones.
    """

    optimizer: Optimizer
    kind: str
    number: int
    group: int


def take_over(
    given: TorchOptimizers | None,
    module: nn.Module,
    parts: SplitModule,
    sparse: OptimizerChoice | None,
    dense: OptimizerChoice | None,
) -> tuple[WantedModel, dict[str, Any], list[torch.optim.Optimizer], dict[str, tuple[int, int]]]:
    """Take optimizers over from those of torch.

    Parameters
    ----------
    given : torch.optim.Optimizer, sequence or None
        Of the module's parameters.
    module : torch.nn.Module
        The module that is distributed.
    parts : SplitModule
        Its parameters, split.
    sparse, dense : Optimizer or callable, optional
        For parameters that none of torch's optimizers has.

    Returns
    -------
    tuple
        What the module needs: frozen parameters that one of torch's has may learn later; which
        optimizers tables and other parameters have, and which of these must not lie in one
        variable, as `place_model` takes them; those of torch; and for each parameter which of them,
        and which of its groups, has it.

    Raises
    ------
    ConfigurationError
        If psnb has not the same optimizer, it has been used, it has parameters that are none of the
        module's, or a parameter has no optimizer or two.
    """
    if given is None:
        return parts.wanted, {"sparse": sparse, "dense": dense}, [], {}
    taken: dict[int, _Taken] = {}
    names = {id(p): n for n, p in reversed([*module.named_parameters(remove_duplicate=False)])}
    several = list(_checked(given))
    for number, each in enumerate(several):
        for index, group in enumerate(each.param_groups):
            made = _Taken(translated(each, group), type(each).__name__, number, index)
            for parameter in group["params"]:
                if (name := names.get(id(parameter))) is None:
                    raise ConfigurationError(
                        f"{DOOR}: group {index} of {type(each).__name__} has a parameter of shape "
                        f"{tuple(parameter.shape)} that is none of the module's. It must be made "
                        "of the parameters of the very module that is distributed, not of a copy, "
                        "and what else learns must be a part of that module"
                    )
                if id(parameter) in taken:
                    raise ConfigurationError(
                        f"{DOOR}: {name!r} is in two optimizers; on servers a parameter has one"
                    )
                taken[id(parameter)] = made
    of = {
        name: taken.get(id(each)) for name, each in module.named_parameters(remove_duplicate=False)
    }
    # One that was frozen when it was placed may learn later, if torch's step would move it then.
    own = {name: of[name] for name in parts.frozen}
    frozen = {n for n, each in own.items() if each is not None and each.kind != "SparseAdam"}
    wanted = parts.wanted
    learning = {**wanted.parameters, **{name: wanted.state[name] for name in frozen}}
    state = {name: value for name, value in wanted.state.items() if name not in frozen}
    wanted = replace(wanted, parameters=learning, state=state)
    of_tables = {name: of.get(name) for name in wanted.tables}
    of_others = {name: of[name] for name in learning}
    for name, found in of_others.items():
        if found is not None and found.kind == "SparseAdam":
            raise ConfigurationError(
                f"{DOOR}: SparseAdam has {name!r}, which is not a table, and in torch refuses its "
                "gradients, too. Give it the weights of nn.Embedding alone, and the others to "
                "another one: optimizer=[torch.optim.SparseAdam(...), torch.optim.Adam(...)]"
            )
    given_to = {n: each for n, each in {**of_tables, **of_others}.items() if each is not None}

    def apart(name: str) -> object:
        # Two optimizers of equal settings (of a GAN) stay two: their rates are set one by one.
        return given_to[name].number if name in given_to else None, name in frozen

    sparse, dense = _choice(of_tables, sparse, "sparse"), _choice(of_others, dense, "dense")
    places = {name: (each.number, each.group) for name, each in given_to.items()}
    return wanted, {"sparse": sparse, "dense": dense, "apart": apart}, several, places


def trained_by(given: TorchOptimizers | None) -> set[int]:
    """Return the ids of the parameters that optimizers have and can move, unless they are tables.

    Objects that are none of torch's are left out: `take_over` reports them.
    """
    several = given if isinstance(given, list | tuple) else [given]
    return {
        id(parameter)
        for each in several
        if isinstance(each, torch.optim.Optimizer) and not isinstance(each, torch.optim.SparseAdam)
        for group in each.param_groups
        for parameter in group["params"]
    }


def _checked(given: TorchOptimizers) -> Iterator[torch.optim.Optimizer]:
    several = list(given) if isinstance(given, list | tuple) else [given]
    for each in several:
        if not isinstance(each, torch.optim.Optimizer):
            raise ConfigurationError(
                f"{DOOR}: expected an optimizer of torch, such as "
                f"torch.optim.Adagrad(module.parameters(), lr=0.1), or a list of them; found "
                f"{each!r:.200}. Those of psnb go to sparse= and dense="
            )
        what = f"{DOOR}: {type(each).__name__}"
        if each._optimizer_step_pre_hooks or each._optimizer_step_post_hooks:
            raise ConfigurationError(
                f"{what} has hooks of its steps, which are taken on servers, where they would not "
                "run: put into the training step what they do"
            )
        if any("initial_lr" in group for group in each.param_groups):
            raise ConfigurationError(
                f"{what} has a scheduler (torch.optim.lr_scheduler), which has set a rate already. "
                "Make the scheduler after psnb.torch.distribute, and step it in the notebook, at "
                "the end of epochs for instance: what it sets is set on servers with the next "
                "closure. Or give the servers a schedule of psnb, such as psnb.CosineDecay(1e-3, "
                "10_000), which goes by updates: for each in (*model.tables.values(), "
                "*model.variables): each.optimizer.learning_rate = rate"
            )
        yield each


def _choice(
    found: Mapping[str, _Taken | None], others: OptimizerChoice | None, what: str
) -> OptimizerChoice:
    """Return a function from a name to its optimizer: torch's, ``sparse`` or ``dense``.

    Raises
    ------
    ConfigurationError
        If a parameter has no optimizer, or the other choice is for none.
    """
    missing = [name for name, taken in found.items() if taken is None]
    if missing and others is None:
        raise ConfigurationError(
            f"{DOOR}: {', '.join(map(repr, missing[:5]))} ({len(missing)} of {len(found)}) are in "
            "no optimizer of torch (a psnb.torch.Embedding has no parameter): give "
            f"{what}=psnb.Adam(1e-3) for them, or freeze what is not to learn: "
            "requires_grad_(False)"
        )
    if not missing and others is not None:
        raise ConfigurationError(
            f"{DOOR}: torch's optimizers have all that {what}= would be for: leave {what}= out, "
            "or make torch's of the other parameters"
        )
    made = {
        name: optimizer_for(others, name) if taken is None else taken.optimizer  # type: ignore[arg-type]
        for name, taken in found.items()
    }
    return made.__getitem__


def translated(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """Return psnb's optimizer for a group of parameters."""
    kind = type(optimizer).__name__
    if getattr(torch.optim, kind, None) is not type(optimizer) or kind not in _KINDS:
        raise ConfigurationError(
            f"{DOOR}: servers have no {type(optimizer).__module__}.{kind}; they apply "
            f"{', '.join(_KINDS)} of torch.optim. Take one of these, or one of psnb for sparse= "
            "and dense="
        )
    if group.get("differentiable"):
        raise ConfigurationError(
            f"{DOOR}: {kind} is differentiable=True, but nothing can be differentiated by steps "
            "that servers take: leave it out"
        )
    group = {**group, **_fresh(optimizer, group)}
    try:
        return _made(kind, group)
    except ConfigurationError as error:
        raise ConfigurationError(f"{DOOR}: torch.optim.{kind}: {error}") from error


def _made(kind: str, group: Mapping[str, Any]) -> Optimizer:
    rate = float(group["lr"])
    common: dict[str, Any] = {
        "weight_decay": float(group.get("weight_decay", 0.0)),
        "maximize": bool(group.get("maximize", False)),
    }

    def adam(**form: bool) -> Optimizer:
        first, second = map(float, group["betas"])
        options = {"amsgrad": group.get("amsgrad", False), **form, **common}
        return Adam(rate, first, second, group["eps"], **options)

    match kind:
        case "SGD" if not group["momentum"]:
            return SGD(rate, **common)
        case "SGD":
            momentum, dampening = float(group["momentum"]), float(group["dampening"])
            return Momentum(rate, momentum, group["nesterov"], dampening, **common)
        case "Adagrad":
            start, decay = group["initial_accumulator_value"], group["lr_decay"]
            return Adagrad(rate, start, group["eps"], learning_rate_decay=decay, **common)
        case "Adam":
            return adam(decoupled=group.get("decoupled_weight_decay", False))
        case "AdamW":
            return adam()
        case "SparseAdam":
            return adam(epsilon_hat=True)
    alpha, momentum, epsilon = group["alpha"], group["momentum"], group["eps"]
    options = {"centered": group["centered"], "epsilon_in_root": False, **common}
    return RMSProp(rate, alpha, momentum, epsilon, **options)


def _fresh(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> dict[str, float]:
    """Return where the accumulators of a group begin, if it has any.

    Adagrad makes them with the optimizer, from its own argument and not from a group's.

    Raises
    ------
    ConfigurationError
        If a step has been taken: servers begin with state of their own.
    """
    starts: set[float] = set()
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if type(optimizer) is torch.optim.Adagrad and state and not state["step"]:
            starts |= set(state["sum"].unique().tolist())
        elif names := [name for name, value in state.items() if value is not None]:
            raise ConfigurationError(
                f"{DOOR}: this {type(optimizer).__name__} has taken steps, or has loaded the "
                f"state of one that has ({', '.join(names)}). On servers that state starts over: "
                "make a new optimizer of the module's parameters, with the rate that it should "
                "have now. From then on psnb's checkpoints have its state"
            )
    if len(starts) > 1:
        raise ConfigurationError(
            f"{DOOR}: the accumulators of this Adagrad were changed after it was made; on servers "
            "those of a group begin with one number: initial_accumulator_value="
        )
    return {"initial_accumulator_value": starts.pop()} if starts else {}


class Followed:
    """Follows what the notebook sets in a module and in optimizers of torch; keeps none alive.

    Parameters
    ----------
    module : torch.nn.Module
        The module that was distributed.
    optimizers : sequence of torch.optim.Optimizer
        Its optimizers.
    places : mapping of str to (int, int)
        For each parameter which optimizer and which of its groups has it.
    values : ModelValues
        Where the parameters are on the servers.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        places: Mapping[str, tuple[int, int]],
        values: ModelValues,
    ) -> None:
        self._module, self._frozen = weakref.ref(module), frozen_in(module)
        self._optimizers = [weakref.ref(each) for each in optimizers]
        self._handles: dict[Handle, set[tuple[int, int]]] = {}
        self._seen = self._settings()
        flat = values.parameters
        for name, place in places.items():
            handle: Handle | None = values.tables.get(name)
            handle = handle or flat.variables[flat.places[name].variable]
            self._handles.setdefault(handle, set()).add(place)

    def frozen(self, before: frozenset[str]) -> frozenset[str] | None:
        """Return what does not learn, given what did not; None if nothing was set."""
        module = self._module()
        if module is None or (now := frozen_in(module)) == self._frozen:
            return None
        thawed, self._frozen = self._frozen - now, now
        return (before - thawed) | now

    def settle(self) -> None:
        """Set on servers what has been set in the optimizers since the last call.

        Raises
        ------
        ConfigurationError
            If servers cannot have it so: groups whose parameters lie in one variable have become
            different, an optimizer has taken steps of its own, or what is set needs other state.
        """
        now = self._settings()
        changed = {place for place, each in now.items() if each != self._seen.get(place)}
        if not changed:
            return
        if changed - self._seen.keys():
            raise ConfigurationError(
                f"{DOOR}: a group was added to an optimizer after the module was distributed, "
                "which servers know nothing of. Give the optimizer all parameters that learn now "
                "or later before, and freeze those that learn later: requires_grad_(False)"
            )
        made = {place: self._made(place) for place in now}
        before = {place: self._made(place, self._seen[place]) for place in now}
        news: list[tuple[Handle, str, Any]] = []
        for handle, places in self._handles.items():
            if changed.isdisjoint(places):
                continue
            wanted = {made[place] for place in places if place in made}
            if len(wanted) != 1:
                raise ConfigurationError(
                    f"{DOOR}: groups {sorted(group for _, group in places)} of one optimizer had "
                    f"the same settings, so their parameters lie in one variable, {handle.name!r}; "
                    "now they have different ones. Give those groups an optimizer each, or set "
                    "all of them alike"
                )
            (new,), old = wanted, before[next(iter(places & made.keys()))]
            if type(new) is not type(old) or new.slots != old.slots:
                raise ConfigurationError(
                    f"{DOOR}: what was set in an optimizer after the module was distributed needs "
                    f"other state: {new!r} where servers have {old!r}. Distribute the module with "
                    "it, under another name="
                )
            own = [(each.name, getattr(new, each.name)) for each in fields(new)]
            news += [(handle, name, value) for name, value in own if value != getattr(old, name)]
        for handle, name, value in news:
            setattr(handle.optimizer, name, value)
        self._seen = now

    def _settings(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Return the hyperparameters of each group of the optimizers that still exist."""
        return {
            (number, index): {
                key: value.item() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key not in _NO_SETTINGS
            }
            for number, reference in enumerate(self._optimizers)
            if (optimizer := reference()) is not None
            for index, group in enumerate(optimizer.param_groups)
        }

    def _made(self, place: tuple[int, int], settings: Mapping[str, Any] | None = None) -> Optimizer:
        number, index = place
        optimizer = self._optimizers[number]()
        assert optimizer is not None
        group = optimizer.param_groups[index]
        return translated(optimizer, {**group, **(settings or {})})


_NO_SETTINGS = ("params", "param_names", "initial_lr")
