"""What is shipped: the wheel brings the panel and the hub, and installing it needs no Node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import psnb

ROOT = Path(__file__).parents[1]
EXTENSION = ROOT / "extension"


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


def test_the_wheel_has_no_sources_of_the_front_end(wheel: zipfile.ZipFile) -> None:
    assert not [
        name
        for name in wheel.namelist()
        if name.endswith((".ts", ".tsx")) or "node_modules" in name
    ]


@pytest.mark.parametrize(
    ("node", "said"),
    [(None, "Node is not installed"), ("v18.20.4", "Node v18.20.4 is too old")],
    ids=["none", "old"],
)
def test_a_clone_without_node_says_what_to_install(
    tmp_path: Path, node: str | None, said: str
) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "extension/build_front_end.py"):
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
