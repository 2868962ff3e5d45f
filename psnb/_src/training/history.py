"""TrainingHistory: the results of training, epoch by epoch, also in files. Immutable. Pure."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from psnb._src.metrics.slice_table import SliceTable, loaded_table
from psnb._src.monitor.html.tables import html_table
from psnb._src.monitor.run_record import RunSettings
from psnb._src.utils.checks import path_text
from psnb._src.utils.files import sync
from psnb._src.utils.sealed_json import FormatError, read_sealed, sealed, typed
from psnb._src.utils.text import Named, text_table, unknown
from psnb.errors import CheckpointError, ConfigurationError

HISTORY = ".run.json"
"""How the names of saved histories end."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TrainingSnapshot:
    """Training at one moment.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    batch : int
        Elements of the dataset used in this epoch so far.
    examples : int or None
        As in `EpochRow`, so far.
    metrics : mapping of str to float
        Likewise.
    seconds : float
        Since the epoch began.
    """

    epoch: int
    batch: int
    examples: int | None
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch of `TrainingHistory`.

    Attributes
    ----------
    epoch : int
        Counts from 1.
    metrics : mapping of str to float
        The reports of closures, each closure once: for numbers the mean, weighted by the examples
        that were reported with them; see `report`. Names of validation metrics begin with ``val_``.
    examples : int or None
        The sum of the metric ``examples``, each closure once; None if none reported it.
    batches : int
        Elements of the dataset that were used.
    seconds : float
        How long it took, validation not counted.
    slices : mapping of str to SliceTable
        The values by slice of metrics that were called with ``by``, by the same names: of each the
        worst 100, and the others.
    """

    epoch: int
    metrics: Mapping[str, float]
    examples: int | None
    batches: int
    seconds: float
    slices: Mapping[str, SliceTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", Named(self.metrics, "metric"))
        object.__setattr__(self, "slices", Named(self.slices, "metric by slice"))


@dataclass(frozen=True)
class TrainingHistory:
    """What `Trainer.train_from_dataset` returns.

    ``history["loss"]`` is the list of a metric's values, one an epoch, NaN where it was not
    reported; ``"examples"``, ``"batches"`` and ``"seconds"`` are columns, too.

    Attributes
    ----------
    rows : tuple of EpochRow
        The epochs. If training was stopped in the middle of one, its row is of that part. If it
        began there, its row is of the whole epoch all the same; but states of metrics of your own,
        and of an exact AUC beyond 16 MiB, are of the rest.
    stopped : str
        Why training ended early: ``"interrupted"``, or the argument of `Trainer.stop`; empty if it
        did not.
    state : mapping
        Where training is, in JSON's types: ``train_from_dataset(..., resume=history.state)``
        continues from there. Checkpoints of the trainer have it as their metadata.
    settings : mapping
        With what was trained, in JSON's types; see `Run`.
    """

    rows: tuple[EpochRow, ...] = ()
    stopped: str = ""
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, name: str) -> list[Any]:
        columns = ("epoch", "examples", "batches", "seconds")
        if name in columns:
            return [getattr(row, name) for row in self.rows]
        if name not in self.names:
            raise ConfigurationError(unknown("column", name, (*columns, *self.names)))
        return [row.metrics.get(name, float("nan")) for row in self.rows]

    @property
    def slices(self) -> dict[str, SliceTable]:
        """The values by slice of each metric that has some, in the latest epoch with it."""
        found = {name: table for row in self.rows for name, table in row.slices.items()}
        return Named(found, "metric by slice")

    @property
    def names(self) -> list[str]:
        """The names of its metrics, in the order in which they first came."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write rows and settings into a file, for `runs` and `compare`; the state is left out.

        Parameters
        ----------
        path : str or os.PathLike
            A file of this machine whose name ends with ``.run.json``; one that is there is
            replaced, wholly or not at all.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        ConfigurationError
            If the name has another end.
        OSError
            If it cannot be written.
        """
        file = Path(path_text("save: path", path)).absolute()
        if not file.name.endswith(HISTORY):
            raise ConfigurationError(
                f"save: psnb.runs finds a history by its name: it must end with {HISTORY!r}, found "
                f"{file.name!r:.200}"
            )
        settings = self.settings or None
        content = {"saved": time.time(), "settings": settings, "stopped": self.stopped}
        _replace(file, sealed({**content, "rows": saved_rows(self.rows)}, _FORMAT))
        return file

    def __repr__(self) -> str:
        head, *rows = self._cells()
        end = [f"stopped: {self.stopped}"] if self.stopped else []
        return "\n".join([text_table(head, rows), *end])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        end = f"<div>stopped: {escape(self.stopped)}</div>" if self.stopped else ""
        return f"<div>{html_table('epochs', tuple(head), [tuple(row) for row in rows])}{end}</div>"

    def _cells(self) -> list[list[str]]:
        names = self.names
        return [
            ["epoch", "batches", "examples", "seconds", *names],
            *(
                [
                    str(row.epoch),
                    f"{row.batches:,}",
                    "-" if row.examples is None else f"{row.examples:,}",
                    f"{row.seconds:.1f}",
                    *(f"{row.metrics[n]:.4f}" if n in row.metrics else "-" for n in names),
                ]
                for row in self.rows
            ),
        ]


def saved_rows(rows: tuple[EpochRow, ...]) -> list[dict[str, Any]]:
    """Return rows in JSON's types, with texts in place of NaN and infinite numbers.

    `loaded_rows` makes them again.
    """
    saved = []
    for row in rows:
        each = {name: getattr(row, name) for name in EpochRow.__slots__}
        found = row.metrics.items()
        each["metrics"] = {n: v if math.isfinite(v) else str(float(v)) for n, v in found}
        each["slices"] = {name: table.saved() for name, table in row.slices.items()}
        saved.append(each)
    return saved


def loaded_rows(saved: Any) -> tuple[EpochRow, ...]:
    """Return the rows that `saved_rows` was given.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        If these are not rows.
    """
    rows = []
    for row in saved:
        metrics = {name: float(value) for name, value in dict(row["metrics"]).items()}
        # Rows of an earlier psnb have no slices.
        slices = {name: loaded_table(each) for name, each in dict(row.get("slices", {})).items()}
        rows.append(EpochRow(**{**row, "metrics": metrics, "slices": slices}))
    return tuple(rows)


class _Saved(Struct, frozen=True, forbid_unknown_fields=True):
    saved: Annotated[float, Meta(ge=0, lt=1e11)]
    settings: RunSettings | None
    stopped: str
    rows: Sequence[Mapping[str, Any]]


def loaded_history(path: Path) -> tuple[TrainingHistory, float]:
    """Return a history that was saved, and when that was.

    Raises
    ------
    CheckpointError
        If it is not there, damaged, or of another format.
    """
    try:
        saved = typed(read_sealed(path, _FORMAT), _Saved)
        settings = {} if saved.settings is None else to_builtins(saved.settings)
        return TrainingHistory(loaded_rows(saved.rows), saved.stopped, {}, settings), saved.saved
    except FormatError as error:
        raise CheckpointError(f"history {str(path)!r} {error}") from error
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} is not a saved history, or is damaged: {str(error)[:500]}"
        ) from error


def _replace(path: Path, text: str) -> None:
    """Write a file wholly, or leave what is there as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opened, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
    try:
        with open(opened, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            os.unlink(name)
        raise
    sync(path.parent)
