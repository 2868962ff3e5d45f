"""Starts the Chromium that the system has."""

from __future__ import annotations

import os
import shutil

from playwright.sync_api import Browser, Playwright


def launch(playwright: Playwright) -> Browser:
    """Start it, without a window."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("there is no Chromium: install your system's package `chromium`")
    # Its sandbox does not work for root, as in a container.
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    return playwright.chromium.launch(executable_path=path, args=options)
