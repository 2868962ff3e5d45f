"""An open notebook in the browser, driven as a person would, through JupyterLab's own commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Dialog, Locator, Page

from tests.browser.lab import Lab

PATIENCE = 60_000
"""Milliseconds after which a wait gives up."""

# Not with each frame, as is usual, for each then is drawn.
WAITING: dict[str, Any] = {"timeout": PATIENCE, "polling": 100}
"""Of `Page.wait_for_function`."""

_PANEL = "window.jupyterapp.shell.currentWidget"


def close_all(page: Page) -> None:
    """Close all that is open in a page of JupyterLab, saved or not, and its left sidebar."""
    page.evaluate(
        """() => {
            const { shell } = window.jupyterapp;
            for (const widget of [...shell.widgets('main')]) widget.dispose();
            shell.collapseLeft();
        }"""
    )


@contextmanager
def dialogs(page: Page) -> Iterator[list[str]]:
    """Collect what a page asks or tells people in dialogs of the browser while the block runs."""
    said: list[str] = []

    def note(dialog: Dialog) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    try:
        yield said
    finally:
        page.remove_listener("dialog", note)


class Notebook:
    """A notebook in a page of JupyterLab.

    Attributes
    ----------
    lab : Lab
        The server that it is on.
    page : playwright.sync_api.Page
        The page that it is open in.
    path : Path
        Its file.
    """

    def __init__(self, lab: Lab, page: Page, path: Path) -> None:
        self.lab, self.page, self.path = lab, page, path
        self._address = lab.page(path.name)

    def open(self, kernel: bool = True) -> Notebook:
        """Load the page, anew if it is open, and wait until the kernel answers if it has one."""
        self.page.goto(self._address)
        return self._wait_until_ready(kernel)

    def show(self) -> Notebook:
        """Open it as `open` does, but in the page as it is, in the place of all that is open there.

        That takes far less time than to load the page, which is done if it is not the server's.
        """
        if not self.page.url.startswith(self.lab.url):
            return self.open()
        close_all(self.page)
        self.page.evaluate(
            "path => { window.jupyterapp.commands.execute('docmanager:open', {path}); }",
            self.path.name,
        )
        return self._wait_until_ready(kernel=True)

    def _wait_until_ready(self, kernel: bool) -> Notebook:
        self.page.wait_for_function(
            f"path => window.jupyterapp && {_PANEL}?.context?.isReady"
            f" && {_PANEL}.context.path === path",
            arg=self.path.name,
            **WAITING,
        )
        self.page.evaluate(f"() => {_PANEL}.revealed")
        if kernel:
            self.page.wait_for_function(
                f"() => {_PANEL}.sessionContext.session?.kernel?.connectionStatus === 'connected'"
                f" && ['idle', 'busy'].includes({_PANEL}.sessionContext.session.kernel.status)",
                **WAITING,
            )
        return self

    def start(self, cell: int) -> None:
        """Begin to run a cell, and do not wait for it."""
        self.page.evaluate(
            f"""cell => {{
                {_PANEL}.content.activeCellIndex = cell;
                window.jupyterapp.commands.execute('notebook:run-cell');
            }}""",
            cell,
        )

    def run(self, *cells: int) -> None:
        """Run cells, one after the other, and wait until they have ended without an error."""
        for cell in cells:
            self.start(cell)
            self.wait_for_end(cell)

    def wait_for_end(self, cell: int) -> None:
        """Wait until a cell has ended, and fail if it raised."""
        self.page.wait_for_function(
            f"cell => {_PANEL}.content.widgets[cell].model.executionState === 'idle'"
            f" && {_PANEL}.content.widgets[cell].model.executionCount !== null",
            arg=cell,
            **WAITING,
        )
        for output in self.outputs(cell):
            assert output["output_type"] != "error", output

    def restart_kernel(self) -> None:
        """Restart the kernel, and wait until it answers."""
        self.page.evaluate(f"() => {_PANEL}.sessionContext.session.kernel.restart()")
        self._wait_until_ready(kernel=True)

    def is_running(self, cell: int) -> bool:
        """Return whether a cell runs or waits for others."""
        state: str = self.page.evaluate(
            f"cell => {_PANEL}.content.widgets[cell].model.executionState", cell
        )
        return state == "running"

    def outputs(self, cell: int) -> list[dict[str, Any]]:
        """Return a cell's outputs, as they would be saved."""
        outputs: list[dict[str, Any]] = self.page.evaluate(
            f"cell => {_PANEL}.content.widgets[cell].model.outputs.toJSON()", cell
        )
        return outputs

    def printed(self, cell: int) -> str:
        """Return what a cell has printed so far."""
        return "".join(
            "".join(output["text"])
            for output in self.outputs(cell)
            if output["output_type"] == "stream"
        )

    def wait_for_text(self, cell: int, text: str) -> None:
        """Wait until a cell has printed something."""
        self.page.wait_for_function(
            f"([cell, text]) => JSON.stringify({_PANEL}.content.widgets[cell].model.outputs"
            ".toJSON()).includes(text)",
            arg=[cell, json.dumps(text)[1:-1]],
            **WAITING,
        )

    def output(self, cell: int) -> Locator:
        """Return what the page shows below a cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-Cell-outputArea")

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook; return what is in the file then."""
        self.page.evaluate(f"() => {_PANEL}.context.save()")
        return nbformat.read(self.path, as_version=4)
