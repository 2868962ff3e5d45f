"""What is shipped: the wheel brings the panel and the hub, and installing it needs no Node."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
import yaml

import psnb
from hatch_build import absolute

ROOT = Path(__file__).parents[1]
EXTENSION = ROOT / "extension"

NOTEBOOK_ONLY = ("anywidget", "ipywidgets", "jupyterlab", "matplotlib", "rich")
"""What psnb needs in a notebook, and not in a worker or a server."""


def smaller_way() -> list[list[str]]:
    """Return the commands of the documentation that install psnb on workers and servers."""
    page = (ROOT / "docs" / "installation.md").read_text()
    section = page.partition("## The machines of a cluster")[2]
    block = section.partition("```sh\n")[2].partition("```")[0].replace("\\\n", " ")
    return [shlex.split(line) for line in block.splitlines()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, of the front end as `make frontend` has built it."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "HATCH_JUPYTER_BUILDER_SKIP_NPM": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n(`make frontend` builds what is missing)"
    (path,) = folder.glob("psnb-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def shared(wheel: zipfile.ZipFile, path: str) -> str:
    """Name of a file that is installed below the environment's own folder."""
    return f"psnb-{psnb.__version__}.data/data/{path}"


def test_the_wheel_brings_the_panel(wheel: zipfile.ZipFile) -> None:
    folder = shared(wheel, "share/jupyter/labextensions/psnb")
    package = json.loads(wheel.read(f"{folder}/package.json"))
    names = wheel.namelist()
    assert f"{folder}/{package['jupyterlab']['_build']['load']}" in names
    assert f"{folder}/schemas/psnb/preferences.json" in names
    assert f"{folder}/install.json" in names


def test_the_wheel_enables_the_hub(wheel: zipfile.ZipFile) -> None:
    config = wheel.read(shared(wheel, "etc/jupyter/jupyter_server_config.d/psnb.json"))
    assert json.loads(config) == {"ServerApp": {"jpserver_extensions": {"psnb": True}}}


def test_the_wheel_brings_the_widget(wheel: zipfile.ZipFile) -> None:
    assert {
        "psnb/_src/monitor/static/widget.js",
        "psnb/_src/monitor/static/widget.css",
    } <= set(wheel.namelist())


def test_the_wheel_brings_the_templates_of_static_pages(wheel: zipfile.ZipFile) -> None:
    folder = "psnb/_src/monitor/html"
    assert {f"{folder}/summary.html", f"{folder}/tables.html"} <= set(wheel.namelist())


def test_the_wheel_has_no_sources_of_the_front_end(wheel: zipfile.ZipFile) -> None:
    assert not [
        name
        for name in wheel.namelist()
        if name.endswith((".ts", ".tsx")) or "node_modules" in name
    ]


def test_the_description_leads_nowhere_that_is_only_in_the_repository(
    wheel: zipfile.ZipFile,
) -> None:
    metadata = message_from_bytes(wheel.read(f"psnb-{psnb.__version__}.dist-info/METADATA"))
    description = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "psnb.ParameterServerStrategy(client)" in description
    links = r"\]\(([^)\s]+)|\b(?:src|srcset|href)=\"([^\"]+)|^\[[^\]]+\]: (\S+)"
    found = ["".join(each) for each in re.findall(links, description, re.MULTILINE)]
    assert not [each for each in found if not each.startswith(("https://", "#"))]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", " A guide, [far](https://example.org), [here](#why). "),
        (
            "https://example.org/",
            "![p](https://example.org/p.png) [A guide](https://example.org/docs/a.md), "
            "[far](https://example.org), [here](#why). "
            '<img src="https://example.org/q.png" alt=""><source srcset="https://example.org/r.png">',
        ),
    ],
)
def test_relative_links_and_pictures_get_the_address_that_there_is(
    address: str, expected: str
) -> None:
    text = "![p](p.png) [A guide](docs/a.md), [far](https://example.org), [here](#why)."
    text += ' <img src="q.png" alt=""><source srcset="r.png">'
    assert absolute(text, address, address) == expected


@pytest.mark.parametrize(
    ("node", "said"),
    [(None, "Node is not installed"), ("v18.20.4", "Node v18.20.4 is too old")],
    ids=["none", "old"],
)
def test_a_clone_without_node_says_what_to_install(
    tmp_path: Path, node: str | None, said: str
) -> None:
    names = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py")
    for name in (*names, "extension/build_front_end.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "psnb").mkdir()
    shutil.copy(ROOT / "psnb" / "__init__.py", tmp_path / "psnb")
    commands = tmp_path / "commands"
    commands.mkdir()
    for command in ("node", "npm") if node else ():
        (commands / command).write_text(f"#!/bin/sh\necho {node}\n")
        (commands / command).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path,
        env={"PATH": str(commands)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"psnb: {said}")
    assert "Node 20.19 or newer" in done.stderr
    assert "Traceback" not in done.stderr


WITHOUT_A_NOTEBOOK = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuses())

import psnb
import psnb._src.cluster.preload
from psnb import *

def step():
    rows.push([7], rows.lookup([7]) - 1.0)
    psnb.report(loss=1.0)

client = psnb.local_cluster(workers=1, servers=1, processes=False)
strategy = psnb.ParameterServerStrategy(client)
rows = strategy.embedding("rows", dim=3, optimizer=psnb.SGD(1.0))
coordinator = psnb.ClusterCoordinator(strategy)
coordinator.schedule(step).fetch()
print(rows.lookup([7]).min())
strategy.close()
client.close()
"""
"""Runs a closure with all that workers and servers load, in one process."""


def test_workers_and_servers_import_nothing_of_a_notebook() -> None:
    names = {*NOTEBOOK_ONLY, "IPython", "ipykernel", "jupyter_core", "jupyter_server", "traitlets"}
    code = WITHOUT_A_NOTEBOOK.format(names=names)
    assert _python(code).stdout == "1.0\n"


def test_the_smaller_way_to_install_has_all_but_what_notebooks_need() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    workers = [each for each in needed if not each.startswith(NOTEBOOK_ONLY)]
    assert len(workers) == len(needed) - len(NOTEBOOK_ONLY)
    first, last = smaller_way()
    assert first == ["pip", "install", *sorted(workers)]
    assert last == ["pip", "install", "--no-deps", "psnb"]


@pytest.mark.parametrize(
    ("there_is_none", "said"),
    [
        ("sys.modules['fcntl'] = None", "locks of files (fcntl)"),
        ("del os.fork, os.register_at_fork", "care for forks (os.register_at_fork)"),
        ("del os.killpg", "groups of processes (os.killpg)"),
        (
            "sys.modules.update(fcntl=None, resource=None)\n"
            "del os.fork, os.register_at_fork, os.killpg, os.memfd_create",
            "locks of files (fcntl), care for forks (os.register_at_fork), "
            "groups of processes (os.killpg)",
        ),
    ],
    ids=["locks", "forks", "groups", "as on Windows"],
)
def test_a_system_that_lacks_something_is_refused_at_once(there_is_none: str, said: str) -> None:
    last = _python(f"import os, sys\n{there_is_none}\nimport psnb").stderr.splitlines()[-1]
    assert last == (
        f"psnb.errors.PlatformError: psnb does not run on {sys.platform}, which lacks {said}. It "
        "is made for Linux: on Windows install it in WSL, elsewhere in a container or on another "
        "host"
    )


def test_a_system_without_shared_memory_is_not_refused() -> None:
    code = (
        "import os\ndel os.memfd_create\n"
        "from psnb._src.transport.shared_memory import can_see, probe\n"
        "import psnb\nprint(probe(), can_see((1, 2, b'')))"
    )
    assert _python(code).stdout == "None False\n"


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )


def test_workflows_run_what_make_has_on_each_version_of_python() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    versions: set[str] = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands = [step["run"] for step in job["steps"] if "run" in step]
            assert commands
            for command in commands:
                program, *arguments = command.split()
                assert program == "make"
                assert set(arguments) <= targets
            versions.update(job.get("strategy", {}).get("matrix", {}).get("python", ()))
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert versions == {*re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers)), "3.14"}


def test_a_citation_names_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == psnb.__version__


def test_the_front_end_has_the_version_of_the_package() -> None:
    for name in ("package.json", "package-lock.json"):
        assert json.loads((EXTENSION / name).read_text())["version"] == psnb.__version__


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads((EXTENSION / "package-lock.json").read_text())["packages"]
    assert not [name for name, package in packages.items() if "resolved" in package]


def test_what_the_settings_start_with_is_what_the_panel_starts_with() -> None:
    schema = json.loads((EXTENSION / "schema" / "preferences.json").read_text())
    defaults = {name: each["default"] for name, each in schema["properties"].items()}
    source = (EXTENSION / "src" / "preferences.ts").read_text()
    written = ", ".join(f"{name}: {value}" for name, value in defaults.items())
    assert f"{{ {written} }}" in source


def test_the_names_that_people_are_pointed_to_are_there() -> None:
    pages = ("tensorflow", "paddle", "names")
    text = "\n".join((ROOT / "docs" / "coming-from" / f"{page}.md").read_text() for page in pages)
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 3, line  # two columns, without a hole
            assert all(cell.strip() for cell in line.strip("|").split("|")), line
    names = set(re.findall(r"`psnb\.([A-Za-z_.]+)", text))
    assert len(names) > 30
    for name in names:
        found: Any = psnb
        for part in name.split("."):
            found = getattr(found, part)
