"""The examples of the site's pages run, each with what it takes for granted."""

from __future__ import annotations

import ast
import gzip
import queue
import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
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

METRICS_PAGE = ROOT / "docs" / "how-to" / "metrics.md"

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
    # No name of a file: `inspect` would look for functions in the page.
    exec(compile(code, f"<{EXAMPLES[code]}>", "exec"), given)


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
"""What closures have noted: the workers are of this process."""


def line_step(iterator: Iterator[Any]) -> None:
    """Note how many lines a batch has."""
    taken = next(iterator)
    seen.append(len(taken["id"] if isinstance(taken, dict) else taken))


def delay_step(iterator: Iterator[Any]) -> None:
    """Note the delays of a batch."""
    seen.extend(next(iterator)["dep_delay"].tolist())


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


def test_dask_collections(given: Namespace) -> None:
    numbers = np.arange(400)
    rows = pd.DataFrame({"origin": "JFK", "dest": "BOS", "dep_delay": numbers})
    Path("flights").mkdir()
    for number in range(4):
        rows[number * 100 : number * 100 + 100].to_parquet(f"flights/{number}.parquet")
    seen.clear()
    given["step"] = delay_step
    run(given, "import dask.dataframe as dd\n\nflights")
    assert sorted(seen) == numbers[:300].tolist()
    run(given, "windows = data.shuffle")
    given["coordinator"].run_epoch(delay_step, iter(given["dataset"]))
    run(given, "memory = psnb.data.InMemoryDataset.of")
    given["coordinator"].run_epoch(delay_step, iter(given["in_memory"]))
    assert sorted(seen) == sorted([*range(300)] * 3)
    given["predict"] = lambda batch: np.ones(len(batch["origin"]))
    run(given, "trainer = psnb.Trainer(coordinator, step, predict=predict)\nbatches")
    assert given["late"].compute().late.tolist() == [1.0] * 300


def test_predictions_and_rows_for_dask(given: Namespace) -> None:
    import dask.dataframe as dd

    import psnb.jax

    table = given["table"] = given["strategy"].embedding("ads", 2, rows=IDS)
    forward = psnb.jax.forward(
        lambda params, rows, batch: {"score": rows["ads"].sum(1)}, tables={"ads": table}
    )
    psnb.export("model", forward, example={"ads": np.arange(8)})
    frame = pd.DataFrame({"ads": np.arange(IDS)})
    given["flights"] = dd.from_pandas(frame, npartitions=2)
    run(given, "predicted = psnb.load_model")
    given["ids"] = [3, 4]
    run(given, "frame = table.to_dask()")
    with dask.config.set(scheduler="synchronous"):
        assert len(given["predicted"].compute()) == IDS
        assert given["frame"].compute().index.tolist() == [3, 4]


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


def test_a_manager_that_saves_by_itself(given: Namespace) -> None:
    given["time"] = time
    given["coordinator"].schedule(abs, (-3,))
    run(given, "saving = psnb.CheckpointManager(")
    path = given["saving"].save()
    assert psnb.checkpoint.load(path).metadata == {"completed": 1}


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


def test_a_page_of_ones_own(given: Namespace) -> None:
    given["strategy"].embedding("users", 2, optimizer=psnb.SGD(0.5))
    run(given, "# A page with two buttons")
    widgets = given["widgets"]
    assert given["page"].children[1].children == (widgets.rates["users"],)
    run(given, "# Figures in a label")
    assert given["state"].value == "idle"
    losses: queue.SimpleQueue[Any] = queue.SimpleQueue()
    widgets.observe(lambda change: losses.put(change["new"]), "metrics")
    given["coordinator"].schedule(lambda: psnb.report(loss=0.5))
    given["coordinator"].join()
    assert losses.get(timeout=30) == {"loss": 0.5}
    assert given["losses"] == [0.5]
    run(given, "# A function that is called")


def test_runs_are_compared(given: Namespace) -> None:
    coordinator = given["coordinator"]
    coordinator.schedule(lambda: psnb.report(loss=0.5, examples=8))
    coordinator.join()
    given["manager"].save()
    run(given, "# The runs of a folder")
    assert given["best"] == 0.5
    run(given, "# Two runs, one of which lives")
    assert len(given["figure"].axes[0].lines) == 2
    run(given, "# A history in a file")


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
    run(given | {"batches": batches()}, "# A dataset on its own")
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
    run(given, "# What closures have written on a worker")
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


OTHER_FRAMEWORK = pytest.mark.second_tier("the same page with another framework")


def test_files_and_torch(clicks: Namespace) -> None:
    run(clicks, "# CSV")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# PyTorch")
    run(clicks, "# Train with PyTorch")
    assert has_learned(clicks["history"]["val_auc"])
    falls_to(clicks, 0.85)
    run(clicks, "# Export from PyTorch")
    assert predicts_alone(clicks)
    held_out = pd.read_csv("held-out.csv")
    held_out.drop(columns="clicked").to_csv("new.csv", index=False)
    run(clicks, "# Score a new file")
    assert psnb.metrics.AUC(None)(held_out["clicked"], clicks["scores"]).result() > 0.7
    run(clicks, "# Save, and go on")
    assert clicks["manager"].latest_checkpoint is not None
    clicks["strategy"].close()


@OTHER_FRAMEWORK
def test_files_and_keras(clicks: Namespace) -> None:
    run(clicks, "# Parquet")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# Keras")
    run(clicks, "# Train with Keras")
    assert has_learned(clicks["fitted"].history["val_auc"])
    falls_to(clicks, 0.85)
    run(clicks, "# Export from Keras")
    assert predicts_alone(clicks)
    clicks["strategy"].close()


@OTHER_FRAMEWORK
def test_files_and_jax(clicks: Namespace) -> None:
    run(clicks, "# Parquet")
    run(clicks, "client = psnb.local_cluster(workers=2, servers=1)\nstrategy")
    run(clicks, "# JAX")
    run(clicks, "# Train with JAX")
    assert has_learned(clicks["history"]["val_auc"])
    falls_to(clicks, 0.85)
    run(clicks, "# Export from JAX")
    assert predicts_alone(clicks)
    clicks["strategy"].close()


def test_two_towers(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    user, group = rng.integers(200, size=4000), rng.integers(8, size=4000)
    # Of forty items a user buys five, which others of his kind buy, too.
    item = 2**62 + 5 * (user % 8) + rng.integers(5, size=4000)
    item = np.where(rng.random(4000) < 0.1, 2**62 + group, item)
    Path("purchases").mkdir()
    for part in range(4):
        rows = {"user": user[part::4], "item": item[part::4]}
        pd.DataFrame(rows).to_parquet(f"purchases/{part}.parquet")
    run(given, "# Purchases in Dask")
    run(given, "# Two towers")
    run(given, "# Train the towers")
    # Below half of what the first batches have, and a third below chance.
    begun = given["coordinator"].history()["loss"]["value"][:3].mean()
    assert given["history"]["loss"][-1] < min(0.5 * begun, 0.7 * np.log(256))
    run(given | {"user": 3}, "# The nearest items")
    texts = dask.dataframe.from_pandas(pd.DataFrame({"item": ["tea", "rum", "tea"]}), npartitions=1)
    hashes = psnb.hash_ids(["rum", "tea"])[None]
    run(given | {"purchases": texts, "found": hashes}, "# Names of the nearest items")
    assert capsys.readouterr().out.endswith("['rum', 'tea']\n")
    kinds = given["items"].nearest(given["users"].lookup(np.arange(8), training=False), k=5)[0]
    own = 2**62 + 5 * np.arange(8)[:, None] + np.arange(5)
    assert np.mean([len({*a} & {*b}) for a, b in zip(kinds, own, strict=True)]) > 4
    assert given["coordinator"].events()[-1].kind is not psnb.EventKind.ROWS_UNMOVED


def test_missing_values(given: Namespace) -> None:
    Path("visits.csv").write_text("age,city,clicked\n20,Oslo,1\n,,0\n30,Oslo,1\n")
    given["np"] = np
    run(given, "# Fill what is missing")
    (found,) = given["batches"]
    assert found["age"].tolist() == [20, 40, 30]
    assert found["age_missing"].tolist() == [0, 1, 0]
    assert found["city"][0] == found["city"][2] != found["city"][1]


# Models.


def leased(given: Namespace) -> Any:
    """Return a dataset of `batches` that workers lease."""
    return given["coordinator"].create_per_worker_dataset(batches(), sharding="dynamic")


def test_torch(given: Namespace) -> None:
    given["dataset"] = leased(given)
    run(given, "# A PyTorch model\n")
    learned = given["model"].state_dict()
    assert (learned["ads.weight"] != given["module"].ads.weight).any()
    run(given, "# A PyTorch model with psnb's optimizers")
    assert given["small"].variables[0].optimizer.learning_rate == 0.005
    run(given, "# Half width, and a bound")
    assert given["bounded"].tables["users"].stored_dtype.name == "bfloat16"
    run(given, "# Evaluate a PyTorch model")
    assert (given["module"].ads.weight == learned["ads.weight"]).all()
    before = given["small"].state_dict()["output.weight"]
    run(given, "# A method of the module")
    assert (given["small"].state_dict()["output.weight"] != before).any()
    given["dataset"] = leased(given)
    run(given, "# A GAN of two distributed models")
    assert given["coordinator"].statistics().failed == 0


def test_jax(given: Namespace) -> None:
    given["dataset"] = leased(given)
    run(given, "# A JAX model")
    assert given["params"].read()["w"].any()
    run(given, "# Predict with JAX")
    assert given["scores"].shape == (2,)
    run(given, "# Two parts of a JAX model that learn in turn")
    assert (given["both"].read()["critic"]["w"] != 1).all()
    run(given, "# An optimizer of optax")
    given["items"].push([3], np.ones((1, 8), np.float32))


def test_keras(given: Namespace) -> None:
    run(given | keras_given(), "# A Keras model")
    assert Path("model.keras").exists()


# Datasets.


def count_rows(iterator: Iterator[Any]) -> None:
    """Note how many rows a batch has; of this module, as what is captured would be a copy."""
    seen.append(len(next(iter(next(iterator).values()))))


def test_rows_of_files(given: Namespace) -> None:
    Path("clicks").mkdir()
    click_files("clicks/a", 100, 1)
    click_files("clicks/b", 100, 2)
    given["step"] = count_rows
    run(given, "# Rows of CSV and Parquet")
    seen.clear()
    run(given, "# Every example exactly once")
    assert sum(seen) == 600
    seen.clear()
    run(given, "# In memory")
    assert sum(seen) == 600


def test_lines_of_files(given: Namespace) -> None:
    words("clicks/a.tsv.gz")
    words("clicks/b.tsv.gz")
    words("tuesday/a.tsv.gz")
    given["np"] = np
    run(given, "# From text to batches")
    assert [len(each["x"]) for each in given["batches"]] == [80]
    assert [len(each["x"]) for each in given["tuesday"]] == [40]
    given["batches"] = given["lines"].batch(20).map(given["parse"])
    run(given, "# The place in a dataset")
    assert next(given["iterator"])["x"].tolist() == list(range(20, 40))


def test_rows_are_held_out_of_one_file(given: Namespace) -> None:
    rows = "".join(f"u{number % 20},{number}\n" for number in range(200))
    Path("clicks.csv").write_text("user,item\n" + rows)
    given["pd"] = pd
    run(given, "# A fifth of the users is held out")
    parts = [[(row["user"], row["item"]) for row in given[name]] for name in ("train", "held_out")]
    assert sorted(item for part in parts for _, item in part) == list(range(200))
    users = [{user for user, _ in part} for part in parts]
    assert all(users)
    assert not users[0] & users[1]


def test_examples_in_memory(given: Namespace) -> None:
    path = Path("clicks/part-0")
    path.parent.mkdir()
    path.write_text("".join(f"1 {number} 1 {number % 2}\n" for number in range(40)))
    run(given, "# Paddle's files in memory")
    given["examples"].load_into_memory()
    assert given["examples"].statistics().examples == 40


# Trainers.


def test_the_trainer(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given |= {
        "step": numpy_step,
        "predict": lambda batch: 1 / (1 + np.exp(-batch["x"][:, 0])),
        "dataset": batches(120),
        "held_out": batches(4),
    }
    run(given, "# A trainer\n")
    assert given["history"]["val_auc"] == [1.0, 1.0]  # it does not get better
    assert given["history"].stopped
    assert "epoch 1 batch 1" in capsys.readouterr().out
    assert list(Path("predictions").glob("*.parquet"))
    assert Path("log.csv").exists()
    run(given, "# A closure that evaluates")
    assert "'examples': 128" in capsys.readouterr().out
    run(given, "# A callback")
    assert capsys.readouterr().out == "good enough\n"


def test_a_script_that_can_be_killed(given: Namespace) -> None:
    given |= {"step": numpy_step, "dataset": batches(12), "predict": len}
    run(given, "# A script that can be killed")
    assert given["manager"].latest_checkpoint is not None
    assert len(given["history"]["auc"]) == 3


def test_the_daily_loop(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    days = ["monday", "tuesday"]
    for day in days:
        words(f"clicks/{day}/part-0")
    of = {"optimizer": psnb.Adagrad(0.1), "accessor": psnb.CtrAccessor()}
    tables = [given["strategy"].embedding(name, 2, **of) for name in ("users", "ads")]
    lines = psnb.data.Dataset.text_lines("clicks/monday/*")
    given |= {
        "clicks": lines.map(lambda line: float(line.split()[0])).batch(8),
        "days": days,
        "users": tables[0],
        "ads": tables[1],
        "trainer": psnb.Trainer(given["coordinator"], daily_step),
    }
    run(given, "# Each day's files")
    assert re.findall(r"^(\w+day) 0\.\d+$", capsys.readouterr().out, re.M) == days
    assert given["manager"].latest_checkpoint is not None


# After a restart.


def test_going_on_from_a_checkpoint(
    given: Namespace, in_process: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psnb.torch

    given["strategy"].close()
    monkeypatch.setattr(psnb, "local_cluster", lambda **_: in_process)
    given |= {
        "client": in_process,
        "WideDeep": wide_deep(),
        "batches": batches(),
        "step": count_rows,
    }
    run(given, "# Before: save while you train")
    seen.clear()
    # The kernel dies in the next epoch, when one batch was used.
    given["coordinator"].schedule(given["step"], (iter(given["dataset"]),))
    given["coordinator"].join()
    given["manager"].save()
    learned = given["model"].state_dict()
    given["strategy"].close()
    run(given, "# After: from the newest checkpoint")
    for name, value in given["model"].state_dict().items():
        assert (learned[name] == value).all()
    run(given, "# After: the rest of the epoch")
    assert sum(seen) == 6 * SIZE
    given["strategy"].close()


def test_a_script_before_and_after(given: Namespace) -> None:
    given |= {"step": numpy_step, "dataset": batches(12)}
    run(given, "# The same script, before and after")
    first = given["history"]
    run(given, "# The same script, before and after")
    assert given["history"].rows == first.rows  # nothing was left to do


def test_attaching(given: Namespace, in_process: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    address = in_process.scheduler.address
    with Client(address) as before:
        gone = psnb.ParameterServerStrategy(before, name="flights")
        gone.embedding("users", 2)
    gone.close()
    with Client(address) as client:
        monkeypatch.setattr(psnb, "connect", {"tcp://host:8786": client}.__getitem__)
        run(given, "# The servers still have all")
        given["coordinator"].schedule(given["users"].lookup, ([1],)).fetch()
        given["strategy"].close()


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
    run(given, "# Take up models of PyTorch, JAX and Keras")
    for name, value in net.state_dict().items():
        assert (given["net"].state_dict()[name] == value).all()
    assert given["params"].read()["w"].tolist() == [1.0] * 3
    assert given["model"].history.epoch == [8, 9]
    given["resumed"].strategy.close()


def test_parameters_with_a_function_of_the_users(
    given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    client = given["strategy"].client
    with psnb.ParameterServerStrategy(client) as old:
        rate = psnb.Adagrad(lambda step: 0.1 / (1 + step))
        users = old.embedding("users", dim=8, optimizer=rate)
        users.push([3], np.ones((1, 8), np.float32))
        row = users.lookup([3])
        psnb.CheckpointManager(psnb.ClusterCoordinator(old), "checkpoints").save()
    with pytest.raises(psnb.errors.ConfigurationError, match="cannot be made again"):
        psnb.resume("checkpoints", client)
    run(given, "# Restore into parameters that you made")
    assert (given["users"].lookup([3]) == row).all()
    assert capsys.readouterr().out == "('users',)\n"


# Metrics, parameters, views, and what users write themselves.


def test_metrics(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given |= {"dataset": leased(given), "predict": lambda batch: np.abs(np.tanh(batch["x"][:, 0]))}
    run(given, "# Metrics of all workers")
    assert {*given["coordinator"].metrics.results()} == {"auc", "log_loss"}
    run(given, "# The AUC of one epoch")
    capsys.readouterr()
    run(given, "# States by hand")
    assert capsys.readouterr().out == "0.75\nnan no negative examples\n"


def test_metrics_by_slice_group_and_query(
    given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run(given, "# A metric by slice")
    value, *table = capsys.readouterr().out.splitlines()
    assert round(float(value), 4) == 0.8333
    (shown,) = re.findall(r"```text\n(slice .*?)```", METRICS_PAGE.read_text(), re.S)
    assert "\n".join(table) == shown.strip()
    run(given, "# The AUC within each user")
    assert capsys.readouterr().out.split() == ["0.4", "1.0"]
    run(given | {"np": np}, "# The order of candidates")
    found = [round(float(each), 4) for each in capsys.readouterr().out.split()]
    assert found == [0.5, 0.4167, 0.5874, 0.4167]


def test_parameters(given: Namespace) -> None:
    run(given, "# Variables and embeddings")
    assert given["weights"].read().any()
    run(given, "# One request to each server")
    run(given, "# Rates, live and scheduled")
    assert given["users"].optimizer.learning_rate == 0.05
    run(given, "# Rows for ids that come often, and decay")
    run(given, "# A row of 32 numbers")
    assert given["products"].stored_dtype.name == "bfloat16"
    run(given, "# At most 1,000 rows")
    run(given, "# Nearest neighbours, a description, all rows")
    assert given["scores"].shape == (4, 5)
    assert len(given["ids"]) == 50
    run(given, "# Rows in files of the servers")
    assert given["large"].statistics().disk_nbytes == 2 * 2 * 8 * 4
    run(given, "# Several ids, one row")
    assert not given["rows"][1].any()
    run(given, "# No vocabulary: texts are hashed")
    assert given["rows"].shape == (3, 8)
    run(given, "# Two of 1,000 rows for each text, summed")
    assert given["rows"].shape == (2, 8)
    run(given, "# A row by quotient, times a row by remainder")
    assert given["rows"].shape == (2, 8)


def test_watching(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    import psnb.jax

    run(given, "# The dashboard, and a closure that reports")
    given["strategy"].embedding("users", 2, optimizer=psnb.Adagrad(0.1))
    run(given, "# What the buttons do")
    assert Path(given["path"]).exists()
    run(given, "# What the dashboard knows")
    assert given["losses"].max() == 1
    ads = given["strategy"].embedding("ads", 4, optimizer=psnb.Adagrad(0.1))
    params = psnb.jax.variables(given["strategy"], {"w": np.zeros(3, np.float32)}, psnb.Adam())
    step = psnb.jax.step(loss, params=params, tables={"ads": ads})
    run(given | {"jax_step": step, "batch": batch()}, "# The operations of a step")
    assert "gradient" in capsys.readouterr().out


def test_formats_and_device_workers_of_users(given: Namespace) -> None:
    Path("points").mkdir()
    for name in "ab":
        np.arange(300, dtype="<f4").tofile(f"points/{name}.bin")
    seen.clear()
    given["step"] = count_rows
    run(given, "# A format of fixed-size records")
    assert sum(seen) == 200
    whole = psnb.data.Dataset.from_files(given["Points"](7), ["points/a.bin"])
    assert [each["label"] for each in whole] == list(range(2, 300, 3))
    parts = [psnb.data.FileRange("points/a.bin", 0, 100), psnb.data.FileRange("points/a.bin", 108)]
    cut = psnb.data.Dataset.from_files(given["Points"](2), parts)
    assert [each["label"] for each in cut] == list(range(2, 300, 3))
    seen.clear()
    run(given, "# A device worker that takes several batches in a closure")
    assert sum(seen) == 400
    assert given["history"]["batches"] == [4, 4]


def test_metrics_of_users(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import dataclass

    given |= {"np": np, "dataclass": dataclass}
    run(given, "# A metric that is a weighted mean")
    assert float(capsys.readouterr().out) == 2 * 2 / (2 * 2 + 1 + 1)
    run(given, "# A function of another metric")
    assert capsys.readouterr().out == "2.0\n"
    f1 = given["f1"]
    given["coordinator"].schedule(lambda: psnb.report(f1=f1([1, 0], [0.9, 0.9])))
    given["coordinator"].join()
    assert given["coordinator"].metrics["f1"].result() == 2 / 3


def test_optimizers_of_users(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given["np"] = np
    run(given, "# An optimizer of your own")
    assert capsys.readouterr().out == "[-0.01  0.01  0.  ]\n"
    given["users"].push([3], np.ones((1, 8), np.float32))
    given["manager"].save()
    with pytest.raises(psnb.errors.ConfigurationError, match="cannot be made again"):
        psnb.resume("checkpoints", given["strategy"].client)


# Concepts, and coming from other systems.


def test_two_writes_that_belong_together(
    given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run(given | {"np": np}, "# Two writes that belong together")
    assert capsys.readouterr().out == "6.0 4.0\n6.0 4.0\n"


def test_update_modes(
    given: Namespace, in_process: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    given |= {"client": in_process}
    given["strategy"].close()
    run(given, "# In rounds, of as many closures")
    with given["strategy"] as strategy:
        given["coordinator"] = psnb.ClusterCoordinator(strategy)
        variable = strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
        run(given | {"step": lambda: variable.push(np.ones(1))}, "# Rounds of one")
        assert variable.read() == [-5.0]  # three rounds of one, two of two
        run(given, "# How stale updates are")
    assert capsys.readouterr().out.startswith("0.0 0 ")


def test_leases(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    run(given, "# An epoch with leases")
    assert capsys.readouterr().out == "20\n"
    run(given, "# The rest of an epoch")
    assert given["rest"].progress().visits == 20
    assert given["coordinator"].statistics().examples == 2000


def test_replicas_and_rebalancing(capsys: pytest.CaptureFixture[str]) -> None:
    with psnb.local_cluster(workers=1, servers=2, processes=False) as client:
        given: Namespace = {"psnb": psnb, "client": client}
        run(given, "# Each parameter on two servers")
        assert capsys.readouterr().out.startswith("2 ")
        with given["replicated"] as strategy:
            run(given | {"strategy": strategy}, "# Spread the shards")


def test_a_save_while_closures_run(given: Namespace) -> None:
    run(given | {"np": np}, "# A save while closures run")
    assert psnb.checkpoint.load(given["manager"].directory / "ckpt-000001")["users"].ids.size


def test_closures(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given["np"] = np
    run(given, "# A closure and its result")
    run(given, "# Captured when it is scheduled")
    run(given, "# Cancel one, and hold the others")
    assert capsys.readouterr().out.splitlines() == ["[0. 2. 4.]", "6.0", "512 1024", "True"]


def test_several_steps_in_a_closure(given: Namespace) -> None:
    users = given["strategy"].embedding("users", 4, optimizer=psnb.SGD(0.5))
    run(given, "# What is busy")
    run(given | {"np": np, "users": users}, "# Ten steps in a closure")
    assert users.statistics().rows > 900


@pytest.fixture
def anew(given: Namespace, in_process: Client, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Give the arrays of 1,024 examples; a cluster is started by the examples themselves."""
    given["strategy"].close()
    monkeypatch.setattr(psnb, "local_cluster", lambda **_: in_process)
    rng = np.random.default_rng(0)
    ids, x = rng.integers(1000, size=1024), rng.normal(size=(1024, 3)).astype(np.float32)
    labels = (ids % 2).astype(np.float32)
    return given | {"np": np, "ids": ids, "x": x, "y": labels, "labels": labels}


def test_from_tensorflow(anew: Namespace) -> None:
    run(anew, "# A cluster on this machine, in place of TF_CONFIG")
    with anew["strategy"] as strategy:
        run(anew, "# Rows for any id, and a dense variable")
        run(anew, "# A loss, and an epoch of steps")
        assert (strategy.parameters["items"].lookup([7]) != 0).any()
        run(anew, "# Checkpoints, and a server that died")


def test_from_tf_data(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    words("clicks.txt")
    with psnb.data.TFRecordWriter("a.tfrecord") as writer:
        for number in range(70):
            writer.write(psnb.data.encode_example({"id": [number], "words": [1] * (number % 3)}))
    given |= {"x": np.ones((640, 3)), "y": np.arange(640), "step": line_step}
    seen.clear()
    run(given, "# A chain over arrays")
    run(given, "# Records and lines")
    run(given, "# An epoch on the workers, and a place to go on")
    given["iterator"].close()  # it prefetches, in a thread
    given["again"].close()
    assert sum(seen) == 640
    assert capsys.readouterr().out.startswith("(64, 3)\nRagged(")


def test_from_paddle(anew: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("clicks/part-0")
    path.parent.mkdir()
    path.write_text("".join(f"1 {n % 2} 2 {n} {n + 1} 1 {n % 7}\n" for n in range(300)))
    anew |= {"days": ["monday"], "files_of": lambda day: "clicks/part-*"}
    run(anew, "# Roles are Dask's")
    with anew["strategy"]:
        run(anew, "# Slots of MultiSlot files")
        run(anew, "# Bags of ids, and a network")
        run(anew, "# A day is an epoch")
    assert 0 <= anew["trainer"].history["auc"][-1] <= 1


def test_from_torch(anew: Namespace) -> None:
    run(anew, "# A loader of one process")
    run(anew, "# A dataset that workers share")
    with anew["strategy"]:
        run(anew, "# A module, and a loop")
        run(anew, "# The same module, and a closure")
        before = anew["model"].state_dict()
        run(anew, "# Save all parameters")
        for name, value in anew["plain"].state_dict().items():
            assert (before[name] == value).all()
        run(anew, "# Save a module")
        assert anew["scores"].shape == (1024,)


def test_from_ray(anew: Namespace) -> None:
    run(anew, "# A table with an optimizer on a server")
    with anew["strategy"]:
        run(anew, "# Steps as closures")
    # The first closure may read what the other worker has pushed before.
    assert anew["losses"][-1] < anew["losses"][0] <= 1.0


def test_from_torchrec(anew: Namespace) -> None:
    words_of = [np.arange(n % 5 + 1) for n in range(200)]
    lengths = np.array([len(each) for each in words_of])
    bags = psnb.data.Ragged(np.concatenate(words_of), np.append(0, np.cumsum(lengths)))
    anew["examples"] = {"words": bags, "y": (lengths > 2).astype(np.float32)}
    run(anew, "# A plain module with bags")
    run(anew, "# Distribute it, and train")
    anew["strategy"].close()


def test_saving_and_restoring(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    users = given["strategy"].embedding("users", 2, optimizer=psnb.Adagrad(0.1))
    row = users.lookup([3])
    run(given, "# Save, and restore")
    assert capsys.readouterr().out == "monday ckpt-000001\n"
    assert (users.lookup([3]) == row).all()
    given |= {"users": users, "step": lambda n: users.push([3], np.ones((1, 2), np.float32))}
    run(given, "# Try another rate, and take it back")
    assert (users.lookup([3]) == row).all()
    assert users.optimizer.learning_rate == 0.1
    run(given, "# Nine of ten saves are deltas")
    assert given["deltas"].save().name == "ckpt-000001"


def test_clusters_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    start = psnb.local_cluster
    with start(workers=1, servers=2, processes=False) as client:
        address = client.scheduler.address
        with Client(address) as first, Client(address) as second, Client(address) as third:
            clients = {
                "tcp://host:8786": first,
                "tcp://clicks-scheduler:8786": second,
                "tcp://host-0:8786": third,
                "tls://host:8786": first,
            }
            asked: list[Namespace] = []

            def connect(address: str, **options: Any) -> Client:
                asked.append(options)
                return clients[address]

            monkeypatch.setattr(psnb, "connect", connect)
            monkeypatch.setattr(psnb, "local_cluster", lambda **_: first)
            monkeypatch.setattr(Client, "wait_for_workers", lambda *_: None)
            monkeypatch.setattr(Client, "shutdown", Client.close)
            given: Namespace = {"__name__": "__main__", "psnb": psnb}
            run(given, "# On a running cluster")
            assert capsys.readouterr().out == "2 1\n"
            given["strategy"].close()
            run(given, "# A cluster on Kubernetes")
            assert given["strategy"].name == "clicks"
            given["strategy"].close()
            run(given, "# Connect with certificates")
            assert asked[-1]["security"].require_encryption
            run(given, "# A cluster that only this notebook enters")
            monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
            with dask.config.set({"distributed.dashboard.link": ""}):  # as before, after it
                run(given, "# Dask's dashboard through Jupyter")
            assert re.match(r"/user/ada/proxy/\d+/status\n", capsys.readouterr().out)
            run(given, "# End the cluster")
            assert third.status == "closed"


def test_files_that_several_processes_need(
    given: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    words("clicks/part-0")
    given["step"] = line_step
    seen.clear()
    run(given, "# The notebook lists the files")
    assert sum(seen) == 40
    Path("features.py").write_text("TWO = 2\n")
    monkeypatch.syspath_prepend(".")
    run(given, "# Send a module")


def test_a_beginning(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given |= {"client": given["strategy"].client, "step": numpy_step, "batches": batches()}
    given["strategy"].close()
    run(given, "# A beginning")
    assert "compute" in capsys.readouterr().out
    given["strategy"].close()


def test_parameters_of_another_version(
    given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with psnb.ParameterServerStrategy(given["strategy"].client) as old:
        old.variable(np.ones(3, np.float32), name="w")
        old.embedding("users", 4).assign([3, 5], np.ones((2, 4), np.float32))
        given["manager"] = psnb.CheckpointManager(psnb.ClusterCoordinator(old), "checkpoints")
        given["manager"].save()
    run(given, "# Which versions saved it")
    assert psnb.__version__ in capsys.readouterr().out
    run(given, "# With the old version")
    run(given, "# With the new one")
    assert given["w"].read().tolist() == [1, 1, 1]
    assert given["users"].lookup([5]).tolist() == [[1, 1, 1, 1]]


# What trains: each to a loss that is a part of what its first batches have, with the optimizers and
# rates that people copy.

TRAINS = pytest.mark.second_tier("the same examples, for epochs: the first tier has one of them")


def learnable(count: int = 40) -> psnb.data.Dataset:
    """Return batches with labels that follow from the ids and from x."""

    def made(number: int) -> Namespace:
        found = batch(number)
        found["y"] = ((found["ids"] % 2) * 2 - 1 + found["x"][:, 0] > 0).astype(np.float32)
        return found

    return psnb.data.Dataset.range(count).map(lambda number: made(int(number)))


def falls_to(given: Namespace, part: float, metric: str = "loss", epochs: int = 0) -> None:
    """Train on, for so many epochs, and look at what was reported."""
    for _ in range(epochs):
        given["coordinator"].run_epoch(given["step"], iter(given["dataset"]))
    found = given["coordinator"].history()[metric]["value"]
    begun, ended = found[:3].mean(), found[-10:].mean()
    assert ended < part * begun, f"from {begun:.3f} to {ended:.3f}"
    kinds = [each.kind for each in given["coordinator"].events()]
    assert psnb.EventKind.ROWS_UNMOVED not in kinds


def epochs_of(given: Namespace) -> None:
    """Give a dataset that workers lease, of which an epoch is forty batches."""
    given["dataset"] = given["coordinator"].create_per_worker_dataset(
        learnable(), sharding="dynamic"
    )


@TRAINS
def test_torch_trains(given: Namespace) -> None:
    epochs_of(given)
    run(given, "# A PyTorch model\n")
    falls_to(given, 0.5, epochs=5)


@TRAINS
def test_jax_trains(given: Namespace) -> None:
    epochs_of(given)
    run(given, "# A JAX model")
    falls_to(given, 0.7, epochs=5)  # its dense weights have a low rate


@TRAINS
def test_keras_trains(given: Namespace) -> None:
    named = keras_given()
    x = np.concatenate([each["x"] for each in learnable(200)])
    run(given | named | {"x": x, "y": (x[:, :1] > 0).astype(np.float32)}, "# A Keras model")
    falls_to(given, 0.8)  # 0.67 to 0.73: the two workers take turns as they come


@TRAINS
def test_the_page_from_tensorflow_trains(anew: Namespace) -> None:
    run(anew, "# A cluster on this machine, in place of TF_CONFIG")
    with anew["strategy"]:
        run(anew, "# Rows for any id, and a dense variable")
        run(anew, "# A loss, and an epoch of steps")
        falls_to(anew, 0.5, epochs=20)


@TRAINS
def test_the_page_from_torch_trains(anew: Namespace) -> None:
    run(anew, "# A loader of one process")
    run(anew, "# A dataset that workers share")
    with anew["strategy"]:
        run(anew, "# A module, and a loop")
        run(anew, "# The same module, and a closure")
        falls_to(anew, 0.5, epochs=10)


@TRAINS
def test_the_page_from_torchrec_trains(anew: Namespace) -> None:
    rng = np.random.default_rng(0)
    parity = rng.integers(2, size=1024)
    words_of = [2 * rng.integers(50, size=3) + each for each in parity]
    bags = psnb.data.Ragged(np.concatenate(words_of), np.arange(1025) * 3)
    anew["examples"] = {"words": bags, "y": parity.astype(np.float32)}
    run(anew, "# A plain module with bags")
    run(anew, "# Distribute it, and train")
    with anew["strategy"]:
        falls_to(anew, 0.5, epochs=10)


@TRAINS
def test_the_page_from_paddle_trains(anew: Namespace) -> None:
    Path("clicks").mkdir()
    rng = np.random.default_rng(0)
    ads, queries = rng.integers(1, 40, size=(2, 2000))
    lines = [
        f"1 {(q + a) % 2} 2 {q} {q + 100} 1 {a + 200}\n" for q, a in zip(queries, ads, strict=True)
    ]
    Path("clicks/part-0").write_text("".join(lines))
    anew |= {"days": ["monday"] * 10, "files_of": lambda day: "clicks/part-*"}
    run(anew, "# Roles are Dask's")
    with anew["strategy"]:
        run(anew, "# Slots of MultiSlot files")
        run(anew, "# Bags of ids, and a network")
        run(anew, "# A day is an epoch")
        falls_to(anew, 0.5, "cost")
