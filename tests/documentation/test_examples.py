"""The examples of the site's pages run, each with what it takes for granted."""

from __future__ import annotations

import ast
import gzip
import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from tests.documentation.test_names import PAGES, ROOT

pytestmark = [
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

Namespace = dict[str, Any]

EXAMPLES = {
    textwrap.dedent(code): str(page.relative_to(ROOT))
    for page in PAGES
    for code in re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.M | re.S)
}
"""Each example, and the page that it is on."""

IDS, SIZE = 20, 32


@pytest.fixture(scope="module")
def in_process() -> Iterator[Client]:
    """Workers and servers that are threads of this process."""
    with psnb.local_cluster(workers=2, servers=1, processes=False) as client:
        yield client


@pytest.fixture
def given(
    in_process: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    """Give what all examples have, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    with psnb.ParameterServerStrategy(in_process) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        # As in a notebook, where functions are of no module.
        yield {
            "__name__": "__main__",
            "psnb": psnb,
            "strategy": strategy,
            "coordinator": coordinator,
            "manager": psnb.CheckpointManager(coordinator, "checkpoints"),
        }


def run(given: Namespace, beginning: str) -> None:
    """Run the example that begins so."""
    (code,) = [each for each in EXAMPLES if each.startswith(beginning)]
    exec(compile(code, EXAMPLES[code], "exec"), given)


def batch(seed: int = 0) -> Namespace:
    """Return a batch with the fields that the examples name."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SIZE, 3)).astype(np.float32)
    ids = rng.integers(IDS, size=SIZE)
    label = (x[:, 0] > 0).astype(np.float32)
    return {"ids": ids, "ads": ids, "x": x, "y": label, "label": label}


def batches(count: int = 6) -> psnb.data.Dataset:
    return psnb.data.Dataset.range(count).map(lambda number: batch(int(number)))


def words(name: str, lines: int = 40) -> None:
    """Write a file of numbers and labels, compressed if its name says so."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(f"{number} {number % 2}" for number in range(lines)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


seen: list[int] = []
"""How many lines each closure of `line_step` had: the workers are of this process."""


def line_step(iterator: Iterator[Any]) -> None:
    """Note how many lines a batch has."""
    taken = next(iterator)
    seen.append(len(taken["id"] if isinstance(taken, dict) else taken))


def loss(params: Any, rows: Any, batch: Any) -> Any:
    import jax

    logits = batch["x"] @ params["w"] + rows["ads"].sum(1)
    return (jax.nn.softplus(logits) - logits * batch["y"]).mean()


def probability(params: Any, rows: Any, batch: Any) -> Any:
    import jax

    return jax.nn.sigmoid(batch["x"] @ params["w"] + rows["ads"].sum(1))


def numpy_step(iterator: Iterator[Any]) -> None:
    """Report what a step of the examples reports, of a model that is always the same."""
    taken = next(iterator)
    scores = 1 / (1 + np.exp(-taken["x"][:, 0]))
    auc = psnb.metrics.AUC()(taken["label"], scores)
    psnb.report(loss=0.4, auc=auc, examples=len(scores))


def daily_step(iterator: Iterator[Any]) -> None:
    """Report what `numpy_step` reports, of numbers."""
    taken = next(iterator)
    psnb.report(loss=0.4, auc=psnb.metrics.AUC()(taken % 2, taken / 100), examples=len(taken))


def test_each_example_has_a_test() -> None:
    nodes = ast.walk(ast.parse(Path(__file__).read_text()))
    run_here = [
        ast.literal_eval(each.args[1])
        for each in nodes
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "run"
    ]
    for each in EXAMPLES:
        assert any(each.startswith(beginning) for beginning in run_here), each


# Frameworks are imported where they are used: to collect this file needs none.


def wide_deep() -> type:
    """Return the class of the examples' module."""
    import torch
    from torch import Tensor, nn

    class WideDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = nn.Embedding(IDS, 4), nn.Linear(7, 1)

        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            found: Tensor = self.dense(torch.cat([self.table(ids), x], 1))[:, 0]
            return found

    return WideDeep


def keras_given() -> Namespace:
    """Return the model of the examples, and what it is trained with."""
    import keras

    data = [batch(seed) for seed in range(4)]
    return {
        "keras": keras,
        "keras_model": keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")]),
        "x": np.concatenate([each["x"] for each in data]),
        "y": np.concatenate([each["y"] for each in data])[:, None],
    }


def test_twenty_lines(
    given: Namespace,
    in_process: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given["strategy"].close()
    monkeypatch.setattr(psnb, "local_cluster", lambda **_: in_process)
    run(given, "import numpy as np\n\nimport psnb\n\nclient")
    assert capsys.readouterr().out == "[[1. 1. 1.]\n [1. 1. 1.]]\n"
    given["strategy"].close()


def test_torch(given: Namespace) -> None:
    import torch
    from torch.nn import functional

    given |= {"WideDeep": wide_deep(), "F": functional, "torch": torch}
    run(given, "module = WideDeep()")
    given["coordinator"].schedule(given["step"], (iter([batch()]),))
    given["coordinator"].join()
    assert given["coordinator"].statistics().completed == 1


def test_jax(given: Namespace) -> None:
    data = given["coordinator"].create_per_worker_dataset(batches(), sharding="dynamic")
    ads = given["strategy"].embedding("ads", 4, optimizer=psnb.Adagrad(0.05))
    given |= {"tree": {"w": np.zeros(3, np.float32)}, "loss": loss, "ads": ads, "dataset": data}
    run(given, "params = psnb.jax.variables(")
    assert given["params"].read()["w"].any()


def test_keras(given: Namespace) -> None:
    given |= keras_given()
    run(given, "model = psnb.keras.distribute(")
    assert len(given["history"].history["val_loss"]) >= 1
    assert Path("model.keras").exists()


def test_lines_of_files(given: Namespace) -> None:
    words("clicks/a.tsv.gz")
    words("clicks/b.tsv.gz")
    seen.clear()
    run(given | {"step": line_step}, "clicks = psnb.data.Dataset.text_lines(")
    assert sum(seen) == 80


def test_examples_in_memory(given: Namespace) -> None:
    path = Path("clicks/part-0")
    path.parent.mkdir()
    path.write_text("".join(f"1 {number} 1 {number % 2}\n" for number in range(40)))
    seen.clear()
    slots = [psnb.data.Slot("id"), psnb.data.Slot("click")]
    run(given | {"slots": slots, "step": line_step}, "examples = psnb.data.InMemoryDataset(")
    assert sum(seen) == 40


def test_the_trainer(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given |= {
        "step": numpy_step,
        "predict": lambda batch: batch["x"][:, 0],
        "dataset": batches(120),
        "held_out": batches(4),
    }
    run(given, "trainer = psnb.Trainer(")
    assert given["history"]["val_auc"] == [1.0, 1.0]  # it does not get better
    assert given["history"].stopped
    assert "epoch 1 batch 1" in capsys.readouterr().out
    assert list(Path("predictions").glob("*.parquet"))
    assert Path("log.csv").exists()


def test_a_manager_that_saves_by_itself(given: Namespace) -> None:
    given["time"] = time
    given["coordinator"].schedule(abs, (-3,))
    run(given, "saving = psnb.CheckpointManager(")
    path = given["saving"].save()
    assert psnb.checkpoint.load(path).metadata == {"completed": 1}


def test_a_kernel_that_died(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    words("clicks/a")
    clicks = psnb.data.Dataset.text_lines("clicks/a").batch(4)
    given["strategy"].embedding("users", 2, optimizer=psnb.Adam())
    coordinator = given["coordinator"]
    data = coordinator.create_per_worker_dataset(clicks, sharding="dynamic", splits=16)
    iterator = iter(data)
    seen.clear()
    coordinator.schedule(line_step, (iterator,))
    coordinator.join()
    psnb.CheckpointManager(coordinator, "run-1").save()
    given |= {"client": given["strategy"].client, "clicks": clicks, "step": line_step}
    run(given, 'resumed = psnb.resume("run-1"')
    given["resumed"].strategy.close()
    assert sum(seen) == 40
    assert capsys.readouterr().out.split() == ["1", np.__version__]


def test_models_after_a_restart(given: Namespace) -> None:
    import psnb.jax
    import psnb.keras
    import psnb.torch

    given |= {"WideDeep": wide_deep(), "tree": {"w": np.ones(3, np.float32)}} | keras_given()
    strategy, adam = given["strategy"], psnb.Adam(1e-3)
    net = psnb.torch.distribute(given["WideDeep"](), strategy, sparse=adam, dense=adam)
    psnb.jax.variables(strategy, given["tree"], adam)
    strategy.embedding("ads", 4)
    psnb.keras.distribute(given["keras_model"], strategy).compile("adam", "binary_crossentropy")
    psnb.CheckpointManager(given["coordinator"], "runs/day-17").save({"epoch": 8})
    given["client"], given["keras_model"] = strategy.client, keras_given()["keras_model"]
    run(given, 'resumed = psnb.resume("runs/day-17"')
    for name, value in net.state_dict().items():
        assert (given["net"].state_dict()[name] == value).all()
    assert given["params"].read()["w"].tolist() == [1.0] * 3
    assert given["model"].history.epoch == [8, 9]
    given["resumed"].strategy.close()


def test_the_daily_loop(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    days = ["monday", "tuesday"]
    for day in days:
        words(f"clicks/{day}/part-0")
    of = {"optimizer": psnb.Adagrad(0.1), "accessor": psnb.CtrAccessor()}
    tables = [given["strategy"].embedding(name, 2, **of) for name in ("users", "ads")]
    given["manager"].save()
    lines = psnb.data.Dataset.text_lines("clicks/monday/*")
    given |= {
        "clicks": lines.map(lambda line: float(line.split()[0])).batch(8),
        "days": days,
        "users": tables[0],
        "ads": tables[1],
        "trainer": psnb.Trainer(given["coordinator"], daily_step),
    }
    run(given, "manager.restore()")
    assert re.findall(r"^(\w+day) 0\.\d+$", capsys.readouterr().out, re.M) == days
    assert given["manager"].latest_checkpoint is not None


def test_a_warm_start_and_a_look_without_a_cluster(
    given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with psnb.ParameterServerStrategy(given["strategy"].client) as old:
        old.variable(np.ones(3, np.float32), name="deep.w")
        old.variable(np.ones(3, np.float32), name="head")
        old.embedding("users", 2, optimizer=psnb.Adam()).push([3, 5], np.ones((2, 2), np.float32))
        psnb.CheckpointManager(psnb.ClusterCoordinator(old), "checkpoints").save()
    stem = given["strategy"].variable(np.zeros(3, np.float32), name="stem.w")
    given["strategy"].embedding("users", 2, optimizer=psnb.Adam())
    run(given, "yesterday = ")
    assert capsys.readouterr().out == "('stem.w', 'users')\n"
    assert stem.read().tolist() == [1, 1, 1]
    run(given, "saved = psnb.checkpoint.load(")
    assert given["saved"]["users"].ids.tolist() == [3, 5]


def test_attaching(given: Namespace, in_process: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    address = in_process.scheduler.address
    with Client(address) as before:
        gone = psnb.ParameterServerStrategy(before, name="flights")
        gone.embedding("users", 2)
    gone.close()
    with Client(address) as client:
        monkeypatch.setattr(psnb, "connect", {"tcp://host:8786": client}.__getitem__)
        run(given, "client = psnb.connect")
        given["coordinator"].schedule(given["users"].lookup, ([1],)).fetch()
        given["strategy"].close()


def test_when_something_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    start = psnb.local_cluster
    with start(workers=1, servers=2, processes=False) as client:
        address = client.scheduler.address
        with Client(address) as first, Client(address) as second, Client(address) as third:
            given: Namespace = {"__name__": "__main__", "psnb": psnb}
            monkeypatch.setattr(psnb, "local_cluster", lambda **_: first)
            run(given, "# Made to survive")
            given["users"].push([3], np.ones((1, 8), np.float32))
            row = given["users"].lookup([3])
            given["manager"].save()
            run(given, "# A server died")
            first.close()
            given["strategy"].close()
            monkeypatch.setattr(psnb, "connect", lambda _: second)
            run(given, "# The kernel died")
            assert (given["users"].lookup([3]) == row).all()
            given["strategy"].close()
            monkeypatch.setattr(psnb, "local_cluster", lambda **_: third)
            run(given, "# The whole cluster died")
            assert (given["users"].lookup([3]) == row).all()
            given["strategy"].close()


def test_what_is_slow(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    data = given["coordinator"].create_per_worker_dataset(batches(), sharding="dynamic")
    given["coordinator"].run_epoch(numpy_step, iter(data))
    run(given, "# Where the time of closures went")
    run(given, "# Where the time of the datasets went")
    run(given | {"examples": batches()}, "# A dataset on its own")
    shown = capsys.readouterr().out
    assert all(phase in shown for phase in ("read", "pull", "compute", "push", "commit"))
    assert shown.count("map(") >= 2


def test_a_closure_that_fails(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    run(given, "# A closure that fails")
    run(given, "# What failed")
    shown = capsys.readouterr().out
    assert "ZeroDivisionError: division by zero" in shown
    with pytest.raises(ZeroDivisionError):
        given["failure"].rerun()
    run(given, "# One process")
    given["client"].close()


def test_an_export(given: Namespace) -> None:
    strategy = given["strategy"]
    ads = strategy.embedding("ads", 4, accessor=psnb.CtrAccessor())
    params = psnb.jax.variables(strategy, {"w": np.ones(3, np.float32)}, psnb.Adam(1e-3))
    one = {name: batch()[name] for name in ("ads", "x")}
    given |= {"probability": probability, "params": params, "ads": ads, "batch": one}
    run(given | {"ids": one["ads"], "x": one["x"]}, "predict = psnb.jax.forward(")
    assert Path("models/day-17/manifest.json").exists()
    predict = psnb.jax.forward(probability, params=params, tables={"ads": ads})
    run(given | {"predict": predict}, 'manager = psnb.CheckpointManager(coordinator, "runs/ads"')


def click_files(name: str, count: int, seed: int) -> None:
    """Write clicks that depend on the user and the price, as CSV and as Parquet."""
    import pyarrow
    from pyarrow import csv, parquet

    rng = np.random.default_rng(seed)
    users = np.random.default_rng(0).integers(2**62, 2**63, 50)
    who, price = rng.integers(50, size=count), rng.gamma(4, 10, count).round(2)
    odds = np.where(who % 2, 2, -2) + (price - 40) / 20
    clicked = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(int)
    table = pyarrow.table({"user": users[who], "price": price, "clicked": clicked})
    csv.write_csv(table, f"{name}.csv")
    parquet.write_table(table, f"{name}.parquet")


@pytest.fixture
def clicks(given: Namespace, in_process: Client, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Give what the page on files has before it comes to a framework, but for the columns."""
    click_files("train", 3000, 1)
    click_files("held-out", 1000, 2)
    monkeypatch.setattr(psnb, "local_cluster", lambda **_: in_process)
    given["strategy"].close()
    return given


def has_learned(history: list[float]) -> bool:
    """Whether the area under the curve is near what is possible, 0.88."""
    return history[-1] > 0.8


def predicts_alone(given: Namespace) -> bool:
    """Whether the exported model ranks the batch that it was asked, as the one on servers does."""
    run(given, "# In another process")
    scores = np.asarray(given["scores"])
    return bool(psnb.metrics.AUC(None)(given["batch"]["clicked"], scores).result() > 0.7)


def test_files_and_torch(clicks: Namespace) -> None:
    run(clicks, "# CSV")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# PyTorch")
    run(clicks, "# Train with PyTorch")
    assert has_learned(clicks["history"]["val_auc"])
    run(clicks, "# Export from PyTorch")
    assert predicts_alone(clicks)
    run(clicks, "# Save, and go on")
    assert clicks["manager"].latest_checkpoint is not None
    clicks["strategy"].close()


def test_files_and_keras(clicks: Namespace) -> None:
    run(clicks, "# Parquet")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# Keras")
    run(clicks, "# Train with Keras")
    assert has_learned(clicks["fitted"].history["val_auc"])
    run(clicks, "# Export from Keras")
    assert predicts_alone(clicks)
    clicks["strategy"].close()


def test_files_and_jax(clicks: Namespace) -> None:
    run(clicks, "# Parquet")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# JAX")
    run(clicks, "# Train with JAX")
    assert has_learned(clicks["history"]["val_auc"])
    run(clicks, "# Export from JAX")
    assert predicts_alone(clicks)
    clicks["strategy"].close()


def test_metrics(given: Namespace) -> None:
    data = given["coordinator"].create_per_worker_dataset(batches(), sharding="dynamic")
    scores = np.random.default_rng(0).random(SIZE)
    run(
        given | {"iterator": iter(data), "loss": 0.4, "scores": scores},
        "auc, log_loss = psnb.metrics.AUC()",
    )
    assert {*given["coordinator"].metrics.results()} == {"auc", "log_loss"}
