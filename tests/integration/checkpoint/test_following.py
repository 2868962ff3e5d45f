"""Predictors in other processes that follow a run: each prediction is of one checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import psnb
import psnb.jax
from psnb import data
from tests.conftest import DEADLINE, wait_until
from tests.forking import Forked
from tests.integration.checkpoint.followed_notebook import IDS, placed
from tests.integration.models.test_export import ALONE

FOLLOWER = (
    ALONE.split("model = ")[0]
    + """
from pathlib import Path

ids, done, found = np.arange(40), Path(sys.argv[2]), []
with psnb.load_model(sys.argv[1]).follow(every=0.02) as model:
    print("follows", flush=True)
    told = 0
    while not (done.exists() and model.version.number >= int(done.read_text())):
        number = model.version.number
        if number > told:
            told = number
            print(told, flush=True)
        seen = model.predict({"ids": ids})
        found.append((number, seen["rows"], seen["w"], model.version.number))
    seen = model.predict({"ids": ids})
    found.append((model.version.number, seen["rows"], seen["w"], model.version.number))
first, rows, w, last = map(np.array, zip(*found))
np.savez(sys.argv[3], first=first, rows=rows, w=w, last=last)
"""
)


def number_of(path: Any) -> int:
    """Return the number of a checkpoint."""
    return int(path.name.removeprefix("ckpt-"))


def saved(path: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and the dense parameter as they are in a checkpoint, read by other means."""
    found = psnb.checkpoint.load(path)
    rows = np.full((len(IDS), 2), 0.5, np.float32)
    there = np.isin(IDS, found["visits"].ids)
    rows[there] = found["visits"].lookup(IDS[there])
    return rows, found["net"]


def test_a_predictor_in_another_process_picks_up_what_is_trained_and_mixes_nothing(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    tmp_path: Path,
) -> None:
    visits, net, forward = placed(strategy)
    manager = psnb.CheckpointManager(
        coordinator, tmp_path / "run", max_to_keep=999, steps=8, full_every=3
    )
    (variable,) = net.variables
    path = psnb.export(tmp_path / "m", forward, example={"ids": IDS}, follow=manager)

    def step(iterator: Any) -> None:
        ids = next(iterator)
        psnb.push({visits: (ids, np.ones((len(ids), 2), np.float32)), variable: np.ones(3, "f4")})
        psnb.report(examples=len(ids), loss=0.0)

    done, found = tmp_path / "done", tmp_path / "found.npz"
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(path), str(done), str(found)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "follows\n"
            trainer = psnb.Trainer(coordinator, step, checkpoint=manager)
            dataset = data.Dataset.range(40).shuffle(40).batch(2)
            for _ in range(4):
                trainer.train_from_dataset(dataset)
                newest = number_of(manager.latest_checkpoint)
                while int(follower.stdout.readline() or newest) < newest:
                    pass  # until it has followed so far, however slow it is
            last = manager.save()
            (tmp_path / "partial").write_text(str(number_of(last)))
            (tmp_path / "partial").rename(done)
            assert follower.wait(2 * DEADLINE) == 0
        finally:
            follower.kill()
    known = {0: (np.full((40, 2), 0.5, np.float32), np.zeros(3, np.float32))}
    known |= {number_of(each): saved(each) for each in manager.checkpoints}
    with np.load(found) as file:
        seen = dict(file)
    assert len({*seen["first"].tolist()}) > 3  # it followed while there was training
    for first, rows, w, later in zip(
        *(seen[k] for k in ("first", "rows", "w", "last")), strict=True
    ):
        assert any(
            np.array_equal(rows, known[number][0]) and np.array_equal(w, known[number][1])
            for number in range(first, later + 1)
        )
    np.testing.assert_array_equal(seen["w"][-1], np.full(3, -80, np.float32))


def test_a_notebook_that_is_killed_while_it_writes_leaves_the_follower_at_the_last_whole_one(
    cluster: Client, tmp_path: Path
) -> None:
    folder, path = tmp_path / "run", tmp_path / "m"
    with Forked(
        "tests.integration.checkpoint.followed_notebook", str(folder), str(path), heard=True
    ) as notebook:
        try:
            assert notebook.stdout is not None
            assert notebook.stdout.readline() == "writes\n"
            model = psnb.load_model(path).follow(every=0.01)
            wait_until(lambda: model.version.number == 2, "the last whole one is used")
        finally:
            notebook.kill()
    with model:
        assert len(list(folder.glob(".incomplete-*"))) == 1
        assert not model.refresh()
        expected = saved(folder / "ckpt-000002")
        found = model.predict({"ids": IDS})
        np.testing.assert_array_equal(found["rows"], expected[0])
        np.testing.assert_array_equal(found["w"], [-2, -2, -2])
        resumed = psnb.resume(folder, cluster)
        with resumed.strategy as strategy:
            net = strategy.parameters["net"]
            assert isinstance(net, psnb.Variable)
            net.push(np.ones(3, np.float32))
            psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), folder).save()
        wait_until(lambda: model.version.number == 3, "what goes on is followed")
        np.testing.assert_array_equal(model.predict({"ids": IDS})["w"], [-3, -3, -3])
        assert model.failure == ""
