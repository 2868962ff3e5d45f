"""What the house counts: `python -m tests.house` does, in `make lint`."""

from __future__ import annotations

from pathlib import Path

from tests.house import counted

CODE = '''"""A module."""

import os

# Why this number.
NUMBER = 3


# Other: what has no place here.
#
# It goes on.


class Both(os.PathLike):
    """A class."""

    def put(self, x):
        """Pass it on."""
        return self._queue.put(x)

    async def wait(self):
        await self._inner.done.wait()

    def own(self):
        return self.put(1)

    def more(self, x):
        self._queue.put(x)
        self._count += 1

    @property
    def size(self):
        return self._queue.size()

    def __len__(self):
        return self._queue.size()


# Of both.

def function():
    pass
'''


def test_lines_functions_headers_and_forwarders_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(CODE)
    found = counted(path)
    assert found.headers == ["# Other: what has no place here.", "# Of both."]
    assert found.forwarders == ["Both.put", "Both.wait"]
    assert (found.lines, found.code, found.comments) == (42, 19, 5)
    assert (found.imports, found.functions, found.classes) == (1, 7, 1)
