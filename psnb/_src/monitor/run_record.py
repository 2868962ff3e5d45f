"""RunRecord: what is kept of a run to compare it with others: its settings and curves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from psnb._src.monitor.charts.curves import SavedCurves

MOST_CHANGES = 1_000
"""Changes of hyperparameters that are kept: the latest."""

_Time = Annotated[float, Meta(ge=0, lt=1e11)]  # which a calendar has
_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A hyperparameter that was set.

    Attributes
    ----------
    time : float
        In seconds since the epoch.
    parameter, hyperparameter : str
        Of which optimizer, and which of its arguments.
    value : object
        As an optimizer's description has it.
    """

    time: _Time
    parameter: str
    hyperparameter: str
    value: Any


class RunSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With what a run was made.

    Attributes
    ----------
    mode : mapping
        The update mode, described.
    replicas, workers, servers : int
        As of the moment of the record.
    commit : str
        The git commit of the notebook's folder; empty if there is none.
    optimizers : mapping of str to mapping
        With what the parameters that learn were made.
    changes : sequence of Change
        What was set since by the notebook, the oldest first.
    versions : mapping of str to str
        Of psnb, Python and packages.
    """

    mode: Mapping[str, Any]
    replicas: _Count
    workers: _Count
    servers: _Count
    commit: str
    optimizers: Mapping[str, Mapping[str, Any]]
    changes: Sequence[Change]
    versions: Mapping[str, str]


class RunRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A run up to one moment.

    Attributes
    ----------
    id : str
        The same for the runs that went on from its checkpoints.
    name : str
        The coordinator's.
    began, saved : float
        When, in seconds since the epoch.
    settings : RunSettings
        With what it was made.
    curves : SavedCurves
        What it has reported.
    """

    id: str
    name: str
    began: _Time
    saved: _Time
    settings: RunSettings
    curves: SavedCurves


def settings_of(settings: RunSettings) -> dict[str, Any]:
    """Return settings in JSON's types."""
    return dict(to_builtins(settings))
