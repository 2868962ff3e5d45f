"""The fuzzer's targets, without the fuzzer: they must not rot between two runs of it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.__main__ import PARSERS
from tests.fuzz.targets import TARGETS


def test_every_parser_is_fuzzed() -> None:
    assert sorted(TARGETS) == sorted(PARSERS)


@pytest.mark.parametrize("parser", PARSERS)
def test_files_that_are_cut_anywhere_are_read_or_refused(parser: str) -> None:
    target = TARGETS[parser]
    for seed in target.seeds:
        for end in range(0, len(seed) + 1, max(7, len(seed) // 50)):
            target.check(seed[:end])


def test_what_the_fuzzer_compiles_lies_where_no_other_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []

    def run(command: list[str], env: dict[str, str]) -> Any:
        assert stat.S_IMODE(os.stat(command[-1]).st_mode) == 0o700  # what is read from disk, too
        folders.append(Path(env["NUMBA_CACHE_DIR"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(fuzz, "FOUND", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    assert fuzz._main("csv", "0") == 0
    assert len(folders) == len(fuzz.MODES)
    assert all(stat.S_IMODE(each.parent.stat().st_mode) == 0o700 for each in folders)
