"""Processes that are forked from one that uses psnb."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from psnb._src.client import direct

def name():
    return direct._name

mine = name()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, name().encode())
    os._exit(0)
os.wait()
print(mine)
print(os.read(reader, 1000).decode())
"""


def test_a_forked_process_writes_under_a_name_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=True
    )
    mine, its = done.stdout.splitlines()
    assert mine.startswith("process ")
    assert its.startswith("process ")
    assert mine != its
