"""How the processes of a local cluster end."""

from __future__ import annotations

import json
from pathlib import Path

import dask

import psnb

PRELOAD = """
import atexit
import gc
import json
from pathlib import Path


def dask_setup(worker):
    atexit.register(tell, str(worker.name))  # before psnb's, so it is called after that


def tell(name):
    told = [gc.get_freeze_count() > 0, gc.isenabled()]
    Path("{folder}", name).write_text(json.dumps(told))
"""


def test_python_looks_for_garbage_once_and_writes_what_is_open(tmp_path: Path) -> None:
    preload, written = tmp_path / "told.py", str(tmp_path / "written")
    preload.write_text(PRELOAD.format(folder=tmp_path))

    def leave_open(path: str) -> None:
        import sys
        import types

        module = types.ModuleType("of_a_user")
        module.file = open(path, "w")  # type: ignore[attr-defined]  # noqa: SIM115
        module.file.write("all of it")  # type: ignore[attr-defined]
        sys.modules["of_a_user"] = module

    with (
        dask.config.set({"distributed.worker.preload": [str(preload)]}),
        psnb.local_cluster(1, 1) as client,
    ):
        workers = client.scheduler_info(n_workers=-1)["workers"].items()
        (address,) = (address for address, each in workers if each["name"] == "worker-0")
        client.run(leave_open, written, workers=[address])
    for name in ("worker-0", "server-0"):
        assert json.loads((tmp_path / name).read_text()) == [True, False]
    assert Path(written).read_text() == "all of it"
