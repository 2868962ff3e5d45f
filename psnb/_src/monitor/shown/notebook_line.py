"""NotebookLine: a line of progress below a cell, always the same one."""

from __future__ import annotations

import uuid
from html import escape
from typing import Any

_ONE_LINE = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


class NotebookLine:
    """An output of the running cell; its last text stays. For one thread."""

    def __init__(self) -> None:
        self._id = f"psnb-{uuid.uuid4().hex}"
        self._shown = False

    def __enter__(self) -> NotebookLine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Let the last text stay."""

    def draw(self, done: int, total: int, text: str) -> None:
        """Show how much is done, and a text, in place of what was shown before."""
        from IPython.display import display

        bar = f'<progress value="{done}" max="{total}" style="width:12em"></progress>'
        bundle: dict[str, Any] = {
            "text/html": f'<div class="psnb-progress" style="{_ONE_LINE}" title="{escape(text)}">'
            f"{bar} {escape(text)}</div>",
            "text/plain": text,
        }
        display(bundle, raw=True, display_id=self._id, update=self._shown)
        self._shown = True
