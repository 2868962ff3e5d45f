"""Settings: the checked arguments of a coordinator. Pure."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from psnb._src.client.model_records import ModelRecord
from psnb._src.coordinator.timeouts import StartDelay, Timeouts
from psnb._src.monitor.charts.curves import loaded_curves
from psnb._src.monitor.run_record import RunRecord
from psnb._src.protocol.modes import MODES
from psnb._src.utils.checks import check_fields, integer, period, seconds
from psnb._src.utils.config import from_config, to_config
from psnb._src.utils.sealed_json import require, typed
from psnb._src.utils.text import shown
from psnb._src.utils.version import own_version
from psnb.errors import ConfigurationError

DEFAULT_QUEUE_SIZE = 262_144

_positive = partial(integer, least=1)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a coordinator schedules; see `ClusterCoordinator`.

    Raises
    ------
    ConfigurationError
        If the queue size is of the wrong kind; the other fields are checked already.
    """

    max_queue_size: int = DEFAULT_QUEUE_SIZE
    timeouts: Timeouts = field(default_factory=Timeouts)
    start_delay: StartDelay = field(default_factory=StartDelay)
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self, _positive, "max_queue_size")

    def require(self, asked: Settings) -> None:
        """Raise ConfigurationError if ``asked`` differs; its default values are ignored."""
        default = Settings()
        for name in (each.name for each in fields(self)):
            mine, other = getattr(self, name), getattr(asked, name)
            if other not in (getattr(default, name), mine):
                raise ConfigurationError(
                    f"the strategy has a coordinator with {name}={mine!r}: close it first to make "
                    f"one with {other!r}"
                )


# SavingSettings: when a manager saves, and what it keeps. Pure.


@dataclass(frozen=True)
class SavingSettings:
    """The checked arguments of a `CheckpointManager`, with periods in seconds.

    Raises
    ------
    ConfigurationError
        If one is of the wrong kind.
    """

    max_to_keep: int = 3
    every: float | None = None
    steps: int | None = None
    keep_every: float | None = None
    full_every: int = 1
    consistent: bool = True
    save_timeout: float = 300.0

    def __post_init__(self) -> None:
        check_fields(self, _positive, "max_to_keep", "full_every", "steps")
        check_fields(self, period, "every", "keep_every")
        check_fields(self, seconds, "save_timeout")
        if not isinstance(self.consistent, bool):
            raise ConfigurationError(
                f"consistent must be True or False, found {shown(self.consistent)}"
            )


# SavedRun: what a checkpoint has beside parameters, for `psnb.resume` to go on with. Pure.

_PACKAGES = ("numpy", "dask", "distributed", "safetensors")
_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]  # closures have numbers, and such numbers travel
_MANAGERS = {SavingSettings.__name__: SavingSettings}


@cache
def versions() -> dict[str, str]:
    """Return the versions of psnb, Python and the packages that checkpoints depend on."""
    own = {"psnb": own_version(), "python": platform.python_version()}
    return own | {name: version(name) for name in _PACKAGES}


class SavedRun(Struct, frozen=True, forbid_unknown_fields=True):
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
    next_number : int
        Behind the numbers of those: more than there were, as a run reserves numbers for its steps.
    epochs : sequence of mapping
        The states of the epochs that were not over, in the order of their beginning.
    recipes : mapping of str to mapping
        How the parameters were made, by name.
    models : mapping of str to ModelRecord
        What of which model is in which parameter; none in what an earlier psnb saved.
    record : RunRecord or None
        What `psnb.runs` lists; None in what an earlier psnb saved.
    """

    versions: Mapping[str, str]
    manager: Any
    mode: Any
    replicas: _Count
    closures: _Count
    next_number: _Count
    epochs: tuple[Mapping[str, Any], ...]
    recipes: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, ModelRecord] = {}
    record: RunRecord | None = None

    def to_config(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        plain = {"mode": to_config(self.mode), "manager": to_config(self.manager)}
        return dict(msgspec.to_builtins(structs.replace(self, **plain)))

    @classmethod
    def read(cls, run: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]) -> SavedRun:
        """Return what `to_config` returned; its parameters are described by name.

        Raises
        ------
        ValueError
            If it is none, or of other parameters than these.
        """
        read = typed(run, cls)
        require({*read.recipes} == {*parameters}, "its recipes are of other parameters")
        sizes = {name: each.get("shape") for name, each in parameters.items()}
        for name, record in read.models.items():
            record.check_sizes(name, sizes)
        if read.record is not None:
            loaded_curves(read.record.curves)
        return structs.replace(
            read,
            mode=from_config("its mode", read.mode, MODES),
            manager=from_config("its manager", read.manager, _MANAGERS),
        )
