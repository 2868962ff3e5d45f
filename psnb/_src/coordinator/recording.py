"""Recording: what a coordinator tells of its run, now, and with the runs that it goes on from."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psnb._src.client.parameter_shards import ParameterShards
from psnb._src.coordinator.settings import versions
from psnb._src.monitor.charts.curves import Curves, curves_of, joined, loaded_curves, saved_curves
from psnb._src.monitor.commit import commit_of
from psnb._src.monitor.run_record import MOST_CHANGES, Change, RunRecord, RunSettings
from psnb._src.monitor.viewed import Records
from psnb._src.protocol.modes import Mode
from psnb._src.utils.config import to_config
from psnb._src.utils.sealed_json import typed


class Recording:
    """Makes the records of one run; any thread.

    Looking for the commit may take as long as the disk likes, so a thread does it: a record that is
    made before has none.

    Parameters
    ----------
    name : str
        The coordinator's.
    records : Records
        What closures report.

    Attributes
    ----------
    began : float
        When the run began, in seconds since the epoch.
    """

    def __init__(self, name: str, records: Records) -> None:
        self._id, self._name, self.began = uuid.uuid4().hex, name, time.time()
        self._records = records
        self._earlier: RunRecord | None = None
        self._before = Curves()
        self._commit = ""
        threading.Thread(target=self._look, name="psnb-commit", daemon=True).start()

    def _look(self) -> None:
        with suppress(OSError):  # the folder may be gone
            self._commit = commit_of(Path.cwd())

    def go_on_from(self, record: RunRecord | None) -> None:
        """Continue another run, of which its curves were checked."""
        if record is not None and record.id != self._id:
            self._before = loaded_curves(record.curves)
            self._id, self.began, self._earlier = record.id, record.began, record
            self._records.history.moment(record.saved)

    def curves(self) -> Curves:
        """Return the curves until now."""
        return joined(self._before, curves_of(self._records.history_until_now()))

    def settings(
        self, mode: Mode, counts: tuple[int, int, int], parameters: Mapping[str, ParameterShards]
    ) -> RunSettings:
        """Return the settings now; ``counts`` are of replicas, workers and servers."""
        learning = {name: p for name, p in parameters.items() if p.made_with is not None}
        changes = [
            Change(when, name, key, value)
            for name, each in learning.items()
            for when, key, value in each.changes.copy()
        ]
        made: dict[str, Mapping[str, Any]] = {
            name: p.made_with.describe() for name, p in learning.items() if p.made_with
        }
        if (earlier := self._earlier) is not None:
            # Of one process, the parameters still have those from before.
            changes = [each for each in changes if each.time > earlier.saved]
            changes = [*earlier.settings.changes, *changes]
            made |= earlier.settings.optimizers
        changes.sort(key=lambda each: each.time)
        commit = self._commit
        return RunSettings(
            to_config(mode), *counts, commit, made, changes[-MOST_CHANGES:], versions()
        )

    def record(self, settings: RunSettings) -> RunRecord:
        """Return the record of this moment."""
        curves = saved_curves(self.curves())
        moment = self._records.history.moment(time.time())
        return RunRecord(self._id, self._name, self.began, moment, settings, curves)

    def moment_of(self, run: Mapping[str, Any]) -> float:
        """Return when this run was as a checkpoint has it, which says ``run``; 0 if never."""
        try:
            record = typed(run.get("record"), RunRecord | None)  # type: ignore[arg-type]
        except ValueError:  # its parameters may be as they should all the same
            return 0.0
        return record.saved if record is not None and record.id == self._id else 0.0
