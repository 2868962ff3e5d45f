"""MLflow: the callback that tracks training in MLflow."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from psnb._src.training.history import EpochRow, TrainingHistory, TrainingSnapshot
from psnb._src.training.runs import summary
from psnb._src.training.trainer import Callback, Trainer
from psnb._src.utils.checks import path_text, seconds
from psnb._src.utils.paths import is_local
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_UNKNOWN = re.compile(r"[^\w\-. /]|(?<=/)(?=/|$)|(?<=/)\.(?=\.?(/|$))", re.ASCII)
"""What MLflow refuses in a name: characters, and parts that are empty, ``.`` or ``..``."""

_NO_STORE = (
    "MLflow's database, where it keeps runs unless another place is named, needs {}: "
    "pip install psnb[mlflow]. Or name a folder or a server, as in tracking_uri='mlruns'"
)

_MOST_TEXT = 6_000  # of a parameter's value
_MOST_PARAMETERS = 100  # of a request


class _Names:
    """Gives each name one that MLflow takes: none twice, or the folder of another one's file."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._given:
            made, number = _UNKNOWN.sub("_", name), 2
            kind, _, plain = made.partition("/")
            plain = f"{kind}/{plain.replace('/', '_')}"
            if self._taken(made):
                made = plain
            while self._taken(made):
                made, number = f"{plain}_{number}", number + 1
            self._given[name] = made
        return self._given[name]

    def _taken(self, made: str) -> bool:
        return any(
            f"{each}/".startswith(f"{made}/") or f"{made}/".startswith(f"{each}/")
            for each in self._given.values()
        )


class MLflow(Callback):
    """Tracks each training as a run of MLflow.

    Metrics are as those of `TensorBoard`: under ``epoch/`` and a metric's name the values of whole
    epochs, by the epoch; under ``batch/`` those of the epoch so far, by the number of batches that
    this training has used. Characters that MLflow refuses in a name become ``_``. The settings of
    the run are its parameters: mode, workers, servers, and optimizers by the name of what they
    train. The git commit is a tag. A run ends as finished, killed (training was stopped), or
    failed. Needs ``pip install psnb[mlflow]``.

    The workers wait while something is sent to MLflow's server, for as long as its client waits for
    it: see ``MLFLOW_HTTP_REQUEST_TIMEOUT`` and ``MLFLOW_HTTP_REQUEST_MAX_RETRIES``.

    Parameters
    ----------
    experiment : str
        The name of the experiment; it is made if there is none.
    tracking_uri : str or os.PathLike, optional
        Where MLflow keeps runs: a folder, or the address of a server or database. By default where
        ``MLFLOW_TRACKING_URI`` says, or else its own database, ``mlflow.db`` in the working folder.
    name : str, optional
        The run's; by default the coordinator's.
    every : float
        Seconds between two values under ``batch/``, at least.

    Attributes
    ----------
    run_id : str
        Of the latest training; empty before.

    Raises
    ------
    ConfigurationError
        If MLflow is not installed, or an argument is of the wrong kind. When training begins: if
        MLflow lacks what its store needs, or the experiment was deleted.
    """

    def __init__(
        self,
        experiment: str,
        tracking_uri: str | os.PathLike[str] | None = None,
        name: str | None = None,
        every: float = 10.0,
    ) -> None:
        if not (isinstance(experiment, str) and experiment and isinstance(name, str | None)):
            raise ConfigurationError(
                "MLflow: experiment and name must be texts, the former not empty; found "
                f"{shown(experiment)} and {shown(name)}"
            )
        uri = None if tracking_uri is None else path_text("MLflow: tracking_uri", tracking_uri)
        if uri is not None and (is_local(uri) or uri.startswith("file:")):
            # The folder was asked for by name: newer versions of MLflow refuse any without this.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # MLflow would report its use to its makers: set it to "false" to allow that.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "psnb.MLflow needs mlflow: pip install psnb[mlflow]"
            ) from error
        self._experiment, self._uri, self._name = experiment, uri, name
        self._every = seconds("MLflow: every", every, zero=True)
        self._client: Any = None
        self._names = _Names()  # of the run's metrics
        self._before = 0  # batches of earlier epochs
        self._last_report = 0.0
        self._failed = False
        self.run_id = ""

    def on_begin(self, trainer: Trainer) -> None:
        """Begin a run, with the settings."""
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(self._uri)
            found = client.get_experiment_by_name(self._experiment)
        except ImportError as error:  # it comes without what its database needs
            raise ConfigurationError(_NO_STORE.format(error.name)) from error
        if found is not None and found.lifecycle_stage != "active":
            raise ConfigurationError(
                f"MLflow: experiment {shown(self._experiment)} was deleted: take another name, or "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        experiment = (
            client.create_experiment(self._experiment) if found is None else found.experiment_id
        )
        history = trainer.history
        settings, name = history.settings, self._name or trainer.coordinator.name
        commit = settings.get("commit")
        tags = {"mlflow.source.git.commit": commit} if commit else {}
        run = client.create_run(experiment, run_name=name, tags=tags)
        self.run_id, self._failed = run.info.run_id, False
        self._client, self._names = client, _Names()
        for parameters in _parameters(settings):
            client.log_batch(self.run_id, params=parameters)
        self._before = sum(row.batches for row in history.rows)
        self._last_report = time.monotonic()

    def on_batch(self, trainer: Trainer, snapshot: TrainingSnapshot) -> None:
        """Log the metrics so far, if the last ones are old enough."""
        now = time.monotonic()
        if now - self._last_report >= self._every:
            self._last_report = now
            self._log("batch", snapshot.metrics, self._before + snapshot.batch)

    def on_epoch(self, trainer: Trainer, row: EpochRow) -> None:
        """Log the epoch's metrics."""
        self._before += row.batches
        self._log("epoch", row.metrics, row.epoch)

    def on_failure(self, trainer: Trainer, error: Exception) -> None:
        """Note that the run failed."""
        self._failed = True

    def on_end(self, trainer: Trainer, history: TrainingHistory) -> None:
        """End the run."""
        if self._client is not None:
            stopped = "KILLED" if history.stopped else "FINISHED"
            client, self._client = self._client, None
            client.set_terminated(self.run_id, "FAILED" if self._failed else stopped)

    def _log(self, kind: str, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        found = [
            Metric(self._names(f"{kind}/{name}"), float(value), now, step)
            for name, value in metrics.items()
        ]
        self._client.log_batch(self.run_id, metrics=found)


def _parameters(settings: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield settings as MLflow's parameters, as many at once as it takes."""
    from mlflow.entities import Param

    if not settings:
        return
    values = {"settings": summary(settings)}
    values |= {key: str(settings[key]) for key in ("workers", "servers", "replicas")}
    values["mode"] = json.dumps(settings["mode"])
    names = _Names()
    for name, optimizer in settings["optimizers"].items():
        values[names(f"optimizer/{name}")] = json.dumps(optimizer)
    every = [Param(name, value[:_MOST_TEXT]) for name, value in values.items()]
    for first in range(0, len(every), _MOST_PARAMETERS):
        yield every[first : first + _MOST_PARAMETERS]
