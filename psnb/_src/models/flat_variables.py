"""FlatVariables: many arrays by name, kept in few variables on the servers. Pure.

A model has hundreds of small parameters. Parameters of one dtype and one optimizer lie one after
another in one variable, so that a step reads and writes a few. The optimizers work element by
element, and a parameter without a gradient stays as it is, with its count of updates
(`FlatVariables.gradients`), so the result is as with one variable each; but ``clipnorm`` counts the
norm of all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from psnb._src.client.dense_shards import Blend, PartialGradient
from psnb._src.client.variable import Variable
from psnb._src.models.export.manifest import DenseSources
from psnb._src.server.optimizer import OPTIMIZABLE, Optimizer
from psnb._src.server.tables.presence import joined
from psnb._src.strategy.strategy import ParameterServerStrategy
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, InvalidArrayError

OptimizerChoice = Optimizer | Callable[[str], Optimizer]
"""An optimizer for all parameters, or a function from a parameter's name to one."""


def check_strategy(what: str, given: Any) -> None:
    """Check that a front door was given a strategy, not a client, or a model in its place.

    Raises
    ------
    ConfigurationError
        If it is none.
    """
    if not hasattr(given, "__psnb_models__"):
        raise ConfigurationError(
            f"{what}: strategy must be a psnb.ParameterServerStrategy, found {type(given).__name__}"
        )


class ArrayLocation(NamedTuple):
    """Where an array lies: in which variable, from which element on, and its shape."""

    variable: int
    start: int
    shape: tuple[int, ...]

    @property
    def part(self) -> slice:
        """Its elements."""
        return slice(self.start, self.start + math.prod(self.shape))


Members = tuple[Variable, list[str], np.ndarray | None]
"""A variable, the names of some of its arrays, and their ranges there; None if these are all."""


class FlatVariables:
    """Arrays by name, in few variables.

    Parameters
    ----------
    variables : sequence of Variable
        Each with one axis.
    places : mapping of str to ArrayLocation
        Where each array lies.
    """

    def __init__(self, variables: Sequence[Variable], places: Mapping[str, ArrayLocation]) -> None:
        self.variables, self.places = tuple(variables), dict(places)

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatVariables, (self.variables, self.places)

    def split(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays by name, as parts of the variables' values (arrays of any kind)."""
        return {
            name: values[place.variable][place.part].reshape(place.shape)
            for name, place in self.places.items()
        }

    @cached_property
    def names(self) -> list[list[str]]:
        """The names of the arrays of each variable, in the order in which they lie there."""
        groups: list[list[str]] = [[] for _ in self.variables]
        for name, place in sorted(self.places.items(), key=lambda item: item[1].start):
            groups[place.variable].append(name)
        return groups

    def join(self, arrays: Mapping[str, np.ndarray | float]) -> list[np.ndarray | None]:
        """Return the variables' values with these arrays and zeros elsewhere; None for no array."""
        joined: list[np.ndarray | None] = [None] * len(self.variables)
        for name, array in arrays.items():
            place = self.places[name]
            if (whole := joined[place.variable]) is None:
                variable = self.variables[place.variable]
                whole = joined[place.variable] = np.zeros(variable.shape, variable.dtype)
            whole[place.part].reshape(place.shape)[...] = array
        return joined

    def gradients(
        self, arrays: Mapping[str, np.ndarray], *, together: bool = False
    ) -> dict[Variable, np.ndarray | PartialGradient]:
        """Return the gradients of arrays, to push; arrays without one stay as they are.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            Those that have a gradient.
        together : bool
            Whether all arrays count the update, as Keras counts; then there is a push to each
            variable, even of nothing.
        """
        found: dict[Variable, np.ndarray | PartialGradient] = {}
        for variable, names, ranges in self.members(arrays, empty=together):
            parts = [np.reshape(arrays[name], -1) for name in names]
            gradient = np.concatenate([np.empty(0, variable.dtype), *parts], dtype=variable.dtype)
            found[variable] = (
                gradient if ranges is None else PartialGradient(gradient, ranges, together)
            )
        return found

    def members(self, chosen: Collection[str], *, empty: bool = False) -> list[Members]:
        """Return some arrays by variable, in the order in which they lie there.

        With ``empty``, variables that have none of them are there as well.
        """
        found: list[Members] = []
        for variable, names in zip(self.variables, self.names, strict=True):
            there = [name for name in names if name in chosen]
            spans = [self.places[name].part for name in there]
            some = [(span.start, span.stop) for span in spans if span.start < span.stop]
            if len(there) == len(names):
                found.append((variable, there, None))
            elif some or empty:
                ranges = joined(np.array(some, np.int64).reshape(-1, 2))
                found.append((variable, there, ranges))
        return found

    def blends(
        self, shares: Mapping[str, np.ndarray | float], terms: Mapping[str, np.ndarray]
    ) -> dict[Variable, Blend]:
        """Return what to push where arrays are moved; see `Blend`.

        Arrays that have neither a share nor a term stay as they are, and so do variables without
        any other.
        """
        moved = [name for name, term in terms.items() if np.any(shares[name]) or np.any(term)]
        joined = [self.join({name: each[name] for name in moved}) for each in (shares, terms)]
        return {
            variable: Blend(share, term)
            for variable, share, term in zip(self.variables, *joined, strict=True)
            if share is not None and term is not None
        }

    @classmethod
    def joined(cls, several: Sequence[FlatVariables]) -> FlatVariables:
        """Return the arrays of several together."""
        variables: list[Variable] = []
        places: dict[str, ArrayLocation] = {}
        for each in several:
            start = len(variables)
            places |= {n: p._replace(variable=p.variable + start) for n, p in each.places.items()}
            variables += each.variables
        return cls(variables, places)

    def read(self) -> dict[str, np.ndarray]:
        """Fetch all arrays."""
        return self.split([variable.read() for variable in self.variables])

    def sources(self) -> DenseSources:
        """Return where the arrays are, in the form of exported models."""
        return DenseSources(
            {each.name: (each.shape[0], each.dtype.name) for each in self.variables},
            {n: (self.variables[p.variable].name, p.start) for n, p in self.places.items()},
        )

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all arrays; optimizer state stays as it is.

        Raises
        ------
        InvalidArrayError
            As `check`; nothing was changed.
        """
        self.check(arrays)
        for variable, value in zip(self.variables, self.join(arrays), strict=True):
            if value is not None:
                variable.assign(value)

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidArrayError if an array is missing, unknown or of another shape."""
        if missing := sorted(self.places.keys() ^ arrays.keys()):
            raise InvalidArrayError(
                f"parameters do not have the names that they were made with: {missing[:3]}; they "
                f"are {sorted(self.places)[:6]} ..."
            )
        for name, place in self.places.items():
            if np.shape(arrays[name]) != place.shape:
                raise InvalidArrayError(
                    f"parameter {name!r} was made with shape {place.shape}, and now has shape "
                    f"{np.shape(arrays[name])}: a model whose layers changed is another model; "
                    "place it again, under another name="
                )


def place_flat(
    strategy: ParameterServerStrategy,
    name: str,
    arrays: Mapping[str, np.ndarray],
    optimizer: OptimizerChoice | None,
    apart: Callable[[str], object] = lambda name: None,
) -> FlatVariables:
    """Put arrays on the servers.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        Whose servers.
    name : str
        The variable's; if there are several, they are called ``name``, ``name.1``, ...
    arrays : mapping of str to numpy.ndarray
        The initial values, float32 or float64.
    optimizer : Optimizer, callable or None
        For all arrays, or by name; None for arrays that steps move, see `FlatVariables.blends`.
    apart : callable, optional
        Returns a key by name: arrays with equal keys may lie in one variable.

    Raises
    ------
    ConfigurationError
        If an array has another dtype, there is no optimizer for it, or one takes a norm of arrays
        of two dtypes; nothing was placed.
    """
    groups: dict[tuple[np.dtype, Optimizer | None, object], list[str]] = {}
    for each, array in arrays.items():
        if array.dtype not in OPTIMIZABLE:
            raise ConfigurationError(
                f"parameter {each!r} is of {array.dtype}; servers keep float32 and float64. Make "
                "the parameters float32, and compute in half precision where it pays (autocast)"
            )
        own = None if optimizer is None else optimizer_for(optimizer, each)
        groups.setdefault((array.dtype, own, apart(each)), []).append(each)
    _check_norms([(dtype, choice) for dtype, choice, _ in groups])
    names = [name if not i else f"{name}.{i}" for i in range(len(groups))]
    check_free(strategy, names)
    variables, places = [], {}
    for i, ((dtype, choice, _), members) in enumerate(groups.items()):
        start = 0
        for each in members:
            places[each] = ArrayLocation(i, start, arrays[each].shape)
            start += arrays[each].size
        flat = np.concatenate([arrays[each].reshape(-1) for each in members], dtype=dtype)
        variables.append(strategy.variable(flat, names[i], choice))
    return FlatVariables(variables, {each: places[each] for each in arrays})


def _check_norms(groups: Sequence[tuple[np.dtype, Optimizer | None]]) -> None:
    """Raise ConfigurationError if a norm of several dtypes is wanted, which no variable has."""
    seen: dict[Optimizer, np.dtype] = {}
    for dtype, choice in groups:
        if choice is None or (choice.clipnorm is None and choice.by_element):
            continue
        if seen.get(choice, dtype) != dtype:
            raise ConfigurationError(
                f"some parameters are {seen[choice]} and some {dtype}, which lie in two variables, "
                f"but {choice!r} takes the norm of all of them: make them of one dtype, or give "
                "those of each dtype an optimizer of their own, by name"
            )
        seen[choice] = dtype


def optimizer_for(choice: OptimizerChoice, name: str) -> Optimizer:
    """Return the optimizer for a parameter, or raise ConfigurationError if there is none."""
    function = callable(choice) and not isinstance(choice, Optimizer | type)
    found = choice(name) if function else choice  # type: ignore[operator]
    if not isinstance(found, Optimizer):
        raise ConfigurationError(
            f"parameter {name!r}: expected an optimizer of psnb, such as psnb.Adam(1e-3), or a "
            f"function from the parameter's name to one; found {shown(found)}. The servers apply "
            "gradients, so optimizers of other packages cannot do it; those of PyTorch, Keras and "
            "optax are taken over by psnb.torch.distribute(optimizer=), compile of psnb.keras and "
            "psnb.jax.optimizer"
        )
    return found


def check_free(strategy: ParameterServerStrategy, names: Sequence[str]) -> None:
    """Raise ConfigurationError if a name is taken."""
    if taken := sorted(strategy.parameters.keys() & set(names)):
        raise ConfigurationError(
            f"the strategy has parameters called {taken} already, which are of no model that was "
            "placed wholly: give this model another name="
        )
