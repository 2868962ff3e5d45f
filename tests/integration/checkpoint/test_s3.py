"""Checkpoints in an S3 store, which servers write and the notebook reads, by their address."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import fsspec
import numpy as np
import pytest
from distributed import Client
from moto.server import ThreadedMotoServer

import psnb
from psnb._src.checkpoint.folders import store_at
from psnb._src.utils.paths import RemotePath
from psnb.errors import CheckpointError

BUCKET = "s3://bucket"


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """A store; returns the environment of processes that reach it, as this one does."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    known = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        yield known
    server.stop()


def know(environment: dict[str, str]) -> None:
    os.environ.update(environment)


@pytest.mark.usefixtures("store")
def test_servers_write_into_a_store_and_the_notebook_restores(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, partitioner=psnb.FixedShards(2)) as strategy:
        v = strategy.variable(np.arange(100_000.0), name="v")
        table = strategy.embedding("t", 4, initializer=0.0, optimizer=psnb.Adagrad(1.0))
        table.push(range(100), -np.ones((100, 4), np.float32))
        manager = psnb.CheckpointManager(
            psnb.ClusterCoordinator(strategy), f"{BUCKET}/a/run", max_to_keep=2
        )
        rows = table.lookup(range(100))
        for step in range(3):
            manager.save({"step": step})
        assert [path.name for path in manager.checkpoints] == ["ckpt-000002", "ckpt-000003"]
        v.assign(np.zeros(100_000))
        table.push(range(100), np.ones((100, 4), np.float32))
        assert manager.restore() == {"step": 2}
        assert (v.read() == np.arange(100_000.0)).all()
        assert (table.lookup(range(100)) == rows).all()
        saved = psnb.checkpoint.load(f"{BUCKET}/a/run/ckpt-000002")
        saved.verify()
        assert (saved["v"] == np.arange(100_000.0)).all()
        assert len(RemotePath(f"{BUCKET}/a/run").names()) == 4


@pytest.mark.usefixtures("store")
def test_what_changed_is_written_into_a_store_and_shares_the_rest(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        strategy.variable(np.arange(1000.0), name="still")
        table = strategy.embedding("t", 4, rows=1000, optimizer=psnb.Adagrad(1.0))
        table.push(range(1000), np.ones((1000, 4), np.float32))
        manager = psnb.CheckpointManager(
            psnb.ClusterCoordinator(strategy), f"{BUCKET}/deltas/run", 1, full_every=3
        )
        for number in range(3):
            table.push([number], np.ones((1, 4), np.float32))
            path = manager.save()
        rows = table.lookup(range(1000))
        assert manager.checkpoints == [path]
        saved = psnb.checkpoint.load(str(path))
        saved.verify()
        assert saved.own_nbytes < saved.nbytes / 10
        table.push(range(1000), np.ones((1000, 4), np.float32))
        manager.restore()
        assert (table.lookup(range(1000)) == rows).all()
        table.push([7], np.ones((1, 4), np.float32))
        manager.save()  # a whole one: what nobody shares any more goes
        assert len(RemotePath(f"{BUCKET}/deltas/run").names()) == 2


def test_a_number_that_another_took_at_the_same_moment_stays_its(store: dict[str, str]) -> None:
    file = RemotePath(f"{BUCKET}/c/manifest.json")
    file.create("first")
    with pytest.raises(FileExistsError):
        file.create("second")
    assert file.read_text() == "first"
    assert abs(file.modified() - time.time()) < 60


def test_a_bucket_that_is_not_there_is_reported_and_not_made(store: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match="cannot be written to 's3://other/a/b'"):
        store_at(RemotePath("s3://other/a/b")).prepare()
    assert not RemotePath("s3://other").exists()
