"""The stack of a process whose address space is full."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from psnb._src.utils.standby import extend_stack

def deep(levels):
    if levels:
        sorted([levels - 1], key=deep)

{begin}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000, resource.RLIM_INFINITY))
deep(180)
print("alive")
"""


@pytest.mark.parametrize(("begin", "returncode"), [("extend_stack()", 0), ("pass", -11)])
def test_what_was_extended_is_there_without_memory(begin: str, returncode: int) -> None:
    script = SCRIPT.format(begin=begin)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode == returncode, ended.stderr
    assert (b"alive" in ended.stdout) is (returncode == 0)
