"""SavedRun: what a checkpoint has beside parameters, for `psnb.resume` to go on with. Pure."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from psnb._src.checks import is_integer
from psnb._src.coordinator.saving_settings import SavingSettings
from psnb._src.descriptions import described, made
from psnb._src.modes import MODES, Mode
from psnb._src.parameters import ModelRecord
from psnb._src.sealed_json import keys, require
from psnb._src.version import own_version

_PACKAGES = ("numpy", "dask", "distributed", "safetensors")
_MOST = 1 << 53  # closures have numbers, and such numbers travel
_MANAGERS = {SavingSettings.__name__: SavingSettings}


@cache
def versions() -> dict[str, str]:
    """Return the versions of psnb, Python and the packages that checkpoints depend on."""
    own = {"psnb": own_version(), "python": platform.python_version()}
    return own | {name: version(name) for name in _PACKAGES}


@dataclass(frozen=True)
class SavedRun:
    """What a coordinator was doing at the moment that is saved.

    Attributes
    ----------
    versions : mapping of str to str
        Of psnb, Python and packages.
    manager : SavingSettings
        Of who saved it.
    mode : Mode
        The strategy's.
    replicas : int
        Likewise.
    closures : int
        How many closures had ended, with those of the runs before.
    epochs : sequence of mapping
        The states of the epochs that were not over, in the order of their beginning.
    recipes : mapping of str to mapping
        How the parameters were made, by name.
    models : mapping of str to ModelRecord
        What of which model is in which parameter; none in what an earlier psnb saved.
    """

    versions: Mapping[str, str]
    manager: SavingSettings
    mode: Mode
    replicas: int
    closures: int
    epochs: tuple[Mapping[str, Any], ...]
    recipes: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, ModelRecord] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self) | {"mode": described(self.mode), "manager": described(self.manager)}

    @classmethod
    def read(cls, run: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]) -> SavedRun:
        """Return what `described` returned; its parameters are described by name.

        Raises
        ------
        ValueError
            If it is none, or of other parameters than these.
        """
        run = {"models": {}, **run}
        keys("what it says of the run", run, set(cls.__annotations__))
        kinds = {"versions": dict, "epochs": list, "recipes": dict, "models": dict}
        for name, kind in kinds.items():
            require(isinstance(run[name], kind), f"its {name} are {run[name]!r:.80}")
        for name in ("replicas", "closures"):
            good = is_integer(run[name]) and 0 <= run[name] < _MOST
            require(good, f"its {name} is {run[name]!r:.80}")
        require({*run["recipes"]} == {*parameters}, "its recipes are of other parameters")
        read = {
            "mode": made("its mode", run["mode"], MODES),
            "manager": made("its manager", run["manager"], _MANAGERS),
            "epochs": tuple(run["epochs"]),
            "models": {name: ModelRecord.read(name, each) for name, each in run["models"].items()},
        }
        sizes = {name: each.get("shape") for name, each in parameters.items()}
        for name, record in read["models"].items():
            record.check_sizes(name, sizes)
        return cls(**{**run, **read})
