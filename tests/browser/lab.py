"""A JupyterLab server of the tests' own: nothing of the machine's Jupyter is read or written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
import psutil

from tests.conftest import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "themes": {"theme": "JupyterLab Light"},
}
"""Of ``@jupyterlab/apputils-extension``."""

NOTEBOOK_SETTINGS = {
    # Cells outside of the window are on the page all the same.
    "windowingMode": "none",
    "recordTiming": False,
}


class Lab:
    """A running server.

    Attributes
    ----------
    url : str
        Where it listens, with a slash at its end.
    token : str
        What lets one in.
    folder : Path
        Where its notebooks are.
    runtime : Path
        Where it and its kernels write down how to reach them.
    """

    def __init__(self, url: str, token: str, folder: Path, runtime: Path) -> None:
        self.url, self.token, self.folder, self.runtime = url, token, folder, runtime

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Write a notebook of code cells; return its path."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        path = self.folder / name
        nbformat.write(notebook, path)
        return path

    def page(self, name: str) -> str:
        """Return the address of a notebook, in a workspace of its own."""
        workspace = Path(name).stem
        return f"{self.url}lab/workspaces/{quote(workspace)}/tree/{quote(name)}?token={self.token}"

    def api(self, path: str, method: str = "GET") -> Any:
        """Ask the server's REST interface; return its JSON, None if there is none."""
        request = urllib.request.Request(
            f"{self.url}api/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def end_kernels(self) -> None:
        """End all kernels, with the clusters that they have started."""
        for kernel in self._kernels():
            # One that was killed may be started again, or be gone, at this very moment.
            with suppress(urllib.error.HTTPError):
                if kernel["execution_state"] == "busy":
                    self.api(f"kernels/{kernel['id']}/interrupt", "POST")
            with suppress(urllib.error.HTTPError):
                self.api(f"kernels/{kernel['id']}", "DELETE")

    def _kernels(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def listed() -> bool:
            try:
                found[:] = self.api("kernels")
            except urllib.error.HTTPError as error:
                if error.code != 500:  # as it is for a moment while a kernel starts
                    raise
                return False
            return True

        wait_until(listed, "the server lists its kernels")
        return found


@contextmanager
def running_lab(home: Path, options: Sequence[str] = ()) -> Iterator[Lab]:
    """Run a server whose every file is in ``home``."""
    folder, runtime, settings = home / "notebooks", home / "runtime", home / "settings"
    for each in (folder, runtime):
        each.mkdir(parents=True)
    _write_settings(settings)
    log = home / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *("--ServerApp.port=0", f"--ServerApp.root_dir={folder}"),
                *("--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"),
                *options,
            ],
            env=_environment(home, runtime, settings),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        lab = _reach(process, folder, runtime, log)
        yield lab
        lab.end_kernels()
    finally:
        # Not asked to end: it sometimes waits for ever for something of a page that is still open.
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def _environment(home: Path, runtime: Path, settings: Path) -> dict[str, str]:
    # The outer Jupyter's, if the tests themselves run in one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JPY_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return kept | {
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "PYTHONPATH": path,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def _write_settings(folder: Path) -> None:
    for plugin, values in {
        "apputils-extension/notification": SETTINGS["notification"],
        "apputils-extension/themes": SETTINGS["themes"],
        "notebook-extension/tracker": NOTEBOOK_SETTINGS,
        "docmanager-extension/plugin": {"autosave": False},
    }.items():
        path = folder / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _reach(process: subprocess.Popen[bytes], folder: Path, runtime: Path, log: Path) -> Lab:
    """Wait until the server answers."""
    file = runtime / f"jpserver-{process.pid}.json"

    def answers() -> bool:
        assert process.poll() is None, f"the server has ended: {log.read_text()[-2000:]}"
        # On a busy machine it is written some time before the port is open.
        if not file.exists() or not (text := file.read_text()).endswith("}"):
            return False
        with closing(socket.socket()) as tried:
            return tried.connect_ex(("localhost", json.loads(text)["port"])) == 0

    wait_until(answers, f"JupyterLab starts: {log}", 2 * DEADLINE)
    told = json.loads(file.read_text())
    return Lab(told["url"], told["token"], folder, runtime)
