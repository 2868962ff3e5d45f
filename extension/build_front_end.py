"""Builds the front end for pip, and says what is missing if it cannot: pyproject.toml names it."""

from __future__ import annotations

import os
import re
import subprocess
from shutil import which
from typing import Any

OLDEST = (20, 19)
"""The oldest Node that the front end's tools run on, as in package.json."""


def build(target_name: str, version: str, **options: Any) -> None:
    """Build the widget and JupyterLab's panel with npm, as `hatch_jupyter_builder.npm_builder`.

    An editable install goes without them where they cannot be built: then this raises a
    RuntimeError, of which hatch-jupyter-builder makes a warning. Else a SystemExit, as of that pip
    shows nothing but its text.
    """
    from hatch_jupyter_builder import npm_builder

    skipped = os.environ.get("HATCH_JUPYTER_BUILDER_SKIP_NPM") == "1"
    problem = "" if skipped else what_is_missing()
    if not problem:
        try:
            npm_builder(target_name, version, **options)
        except subprocess.CalledProcessError as error:
            command = " ".join(map(str, error.cmd))
            problem = f"{command} failed in extension/ (see above)"
    if problem:
        text = (
            f"psnb: {problem}. A clone's front end (the widget and JupyterLab's panel) is built "
            "with Node 20.19 or newer and its npm: install them, for example from nodejs.org, and "
            "try again. A wheel or an sdist of psnb needs no Node"
        )
        raise RuntimeError(text) if version == "editable" else SystemExit(text)


def what_is_missing() -> str:
    """Return what the build lacks; empty if there is all that it needs."""
    if which("npm") is None or which("node") is None:
        return "Node is not installed: there is no node and npm"
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        return f"Node {told.strip()} is too old"
    return ""
