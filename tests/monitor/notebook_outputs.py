"""What a process that looks like a notebook's kernel displays."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell


def notebook_outputs() -> Iterator[list[dict[str, Any]]]:
    """Have this process look like a kernel; yield what it displays."""
    shell = InteractiveShell.instance()
    shell.kernel = SimpleNamespace()
    publisher = CapturingDisplayPublisher()
    old, shell.display_pub = shell.display_pub, publisher
    yield publisher.outputs
    shell.display_pub = old
    InteractiveShell.clear_instance()
