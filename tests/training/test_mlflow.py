"""The callback for MLflow, against the real package and its file store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import psnb
from psnb._src.monitor.run_record import RunSettings
from psnb.errors import ConfigurationError
from tests.training.fake_trainer import FakeTrainer, row

SGD = {"name": "SGD", "learning_rate": 0.1}

SETTINGS = RunSettings(
    {"name": "Async"}, 0, 2, 1, "1a2b3c4d" * 5, {"w": SGD}, [], {"psnb": "0.1.0"}
)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client of an empty store; nothing is sent to anybody."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking = pytest.importorskip("mlflow.tracking")
    return tracking.MlflowClient((tmp_path / "store").as_uri())


def trained(client: Any, stopped: str = "", error: Exception | None = None) -> Any:
    """Return the run of a training."""
    trainer: Any = FakeTrainer()
    trainer.history = psnb.TrainingHistory(
        (row(1, loss=0.5),), settings=msgspec.to_builtins(SETTINGS)
    )
    callback = psnb.MLflow("flights", client.tracking_uri, every=0.0)
    callback.on_begin(trainer)
    callback.on_batch(trainer, psnb.TrainingSnapshot(2, 3, 30, {"loss": 0.25}, 1.0))
    callback.on_epoch(trainer, row(2, **{"loss": 0.125, "ndcg@10": 0.75}))
    if error is not None:
        callback.on_failure(trainer, error)
    callback.on_end(trainer, psnb.TrainingHistory(stopped=stopped))
    callback.on_end(trainer, psnb.TrainingHistory())  # it has ended
    return client.get_run(callback.run_id)


def test_mlflow_gets_metrics_and_settings(client: Any) -> None:
    run = trained(client)
    assert run.info.run_name == "fake"
    assert run.info.status == "FINISHED"
    assert run.data.metrics == {"batch/loss": 0.25, "epoch/loss": 0.125, "epoch/ndcg_10": 0.75}
    (batch,) = client.get_metric_history(run.info.run_id, "batch/loss")
    assert batch.step == 13
    assert run.data.params == {
        "settings": "Async, 2 workers, SGD 0.1, 1a2b3c4d",
        "workers": "2",
        "servers": "1",
        "replicas": "0",
        "mode": '{"name": "Async"}',
        "optimizer/w": '{"name": "SGD", "learning_rate": 0.1}',
    }
    assert run.data.tags["mlflow.source.git.commit"] == "1a2b3c4d" * 5


def test_a_run_of_mlflow_ends_as_its_training(client: Any) -> None:
    every = [trained(client, "interrupted"), trained(client, error=ValueError("no"))]
    assert [run.info.status for run in every] == ["KILLED", "FAILED"]
    assert len({run.info.experiment_id for run in every}) == 1


def test_mlflow_takes_many_settings(client: Any) -> None:
    from psnb._src.training.mlflow_log import _parameters

    optimizers = {f"w{number}": SGD for number in range(250)}
    settings = msgspec.to_builtins(msgspec.structs.replace(SETTINGS, optimizers=optimizers))
    assert [len(each) for each in _parameters(settings)] == [100, 100, 55]


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ConfigurationError, match=r"psnb\[mlflow\]"):
        psnb.MLflow("flights")


ODD = ("a//b", "../x", "/abs", ".", "end/", "p@1", "p#1", "b", "b/c", "d/e", "d")


def test_names_that_mlflow_refuses_become_others_and_none_the_same(client: Any) -> None:
    trainer: Any = FakeTrainer()
    settings = msgspec.structs.replace(SETTINGS, optimizers=dict.fromkeys(ODD, SGD))
    trainer.history = psnb.TrainingHistory(settings=msgspec.to_builtins(settings))
    callback = psnb.MLflow("flights", client.tracking_uri)
    callback.on_begin(trainer)
    for epoch in (1, 2):
        callback.on_epoch(trainer, row(epoch, **{name: float(at) for at, name in enumerate(ODD)}))
    callback.on_end(trainer, psnb.TrainingHistory())
    data = client.get_run(callback.run_id).data
    assert sorted(data.metrics.values()) == [float(at) for at in range(len(ODD))]
    assert sum(name.startswith("optimizer/") for name in data.params) == len(ODD)


def test_a_folder_that_is_named_is_taken_also_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow.tracking")
    trainer: Any = FakeTrainer()
    trainer.history = psnb.TrainingHistory()
    callback = psnb.MLflow("flights", Path("~/store"))
    callback.on_begin(trainer)
    callback.on_end(trainer, psnb.TrainingHistory())
    assert [*tmp_path.glob(f"store/*/{callback.run_id}")]
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")  # which the callback has set


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's, of SQLAlchemy
def test_without_a_place_runs_are_in_a_database_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    tracking = pytest.importorskip("mlflow.tracking")
    trainer: Any = FakeTrainer()
    trainer.history = psnb.TrainingHistory()
    callback = psnb.MLflow("flights")
    callback.on_begin(trainer)
    callback.on_end(trainer, psnb.TrainingHistory())
    assert (tmp_path / "mlflow.db").exists()
    assert tracking.MlflowClient().get_run(callback.run_id).info.status == "FINISHED"


def test_a_deleted_experiment_is_refused(client: Any) -> None:
    run = trained(client)
    client.delete_experiment(run.info.experiment_id)
    with pytest.raises(ConfigurationError, match="was deleted: take another name"):
        trained(client)


def test_what_mlflow_lacks_for_its_database_is_named(client: Any) -> None:
    def lacking(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'alembic'", name="alembic")

    trainer: Any = FakeTrainer()
    callback = psnb.MLflow("flights", client.tracking_uri)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mlflow.tracking.MlflowClient.get_experiment_by_name", lacking)
        with pytest.raises(ConfigurationError, match=r"alembic: pip install psnb\[m.*'mlruns'"):
            callback.on_begin(trainer)
    callback.on_end(trainer, psnb.TrainingHistory())  # no run has begun


@pytest.mark.parametrize("given", [{"experiment": ""}, {"experiment": 3}, {"name": 3}])
def test_an_experiment_that_is_no_text_is_refused(given: Any, client: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be texts"):
        psnb.MLflow(**{"experiment": "flights", **given})
