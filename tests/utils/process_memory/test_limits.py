"""The limits of a process's memory, in trees of files like those of the system."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psnb._src.utils.process_memory import limits
from psnb._src.utils.process_memory.limits import MemoryLimits, MemoryUse

MB = 1 << 20
V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def measured(root: Path, nanny: int | None = None) -> dict[str, MemoryUse]:
    """Return what is found in a tree, by the last word of what happens there."""
    process = SimpleNamespace(rss=100 * MB, vms=300 * MB, data=200 * MB)
    found = MemoryLimits(nanny, root, lambda: process).measure()
    return {each.of.rpartition(" ")[2].strip("()"): each for each in found}


@pytest.fixture(autouse=True)
def no_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "address_limit", lambda kind: None)


def group(folder: str, limit: object, current: int, stat: str = "") -> dict[str, object]:
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": current,
        f"{folder}/memory.stat": stat or "anon 1",
    }


def test_where_nothing_says_so_there_is_no_limit(tmp_path: Path) -> None:
    assert measured(tmp_path) == {}


def test_a_nanny_counts_resident_memory(tmp_path: Path) -> None:
    (use,) = measured(tmp_path, 400 * MB).values()
    assert (use.used, use.left, use.total, use.kills) == (100 * MB, 300 * MB, 400 * MB, True)
    assert use.share == 0.25
    assert "Dask's nanny ends its process" in str(use)


def test_what_is_beyond_a_limit_leaves_nothing(tmp_path: Path) -> None:
    (use,) = measured(tmp_path, 90 * MB).values()
    assert (use.left, use.share) == (0, 1.0)


def test_a_machine_has_what_it_can_give_back_and_its_swap(tmp_path: Path) -> None:
    lines = "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\nSwapTotal: 512 kB\n"
    write(tmp_path, {"proc/meminfo": lines + "SwapFree: 256 kB\nHugePages_Total: 0"})
    use = measured(tmp_path)["has"]
    assert (use.left, use.total) == (1280 * 1024, 2560 * 1024)


def test_each_cgroup_on_the_way_up_counts(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/pod/app",
        "proc/self/mountinfo": f"{CPU}\n{V2.format(root='/')}",
        **group(f"{base}/pod/app", "max", 1),
        **group(f"{base}/pod", 500 * MB, 450 * MB, f"active_file {50 * MB}\ninactive_file 0"),
        **group(f"{base}/other", 1, 1),
    }
    write(tmp_path, files)
    assert measured(tmp_path) == {
        "memory.max": MemoryUse(
            *(100 * MB, 100 * MB, 500 * MB),
            "at which the kernel ends a process of its cgroup (memory.max)",
        )
    }


def test_a_cgroup_that_is_held_up_counts_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2.format(root="/"),
            **group("sys/fs/cgroup", 500 * MB, 200 * MB),
            "sys/fs/cgroup/memory.high": 300 * MB,
        },
    )
    found = measured(tmp_path)
    assert (found["memory.high"].left, found["memory.max"].left) == (100 * MB, 300 * MB)


@pytest.mark.parametrize(
    ("at", "own"),
    [("/docker/c1", "/docker/c1/below"), ("/", "/below"), ("/docker/c1", "/elsewhere")],
    ids=["a container that sees the host's path", "its own", "a path that is not there"],
)
def test_cgroups_of_the_first_version_count_what_is_below(
    tmp_path: Path, at: str, own: str
) -> None:
    base = "sys/fs/cgroup/memory"
    files: dict[str, Any] = {
        "proc/self/cgroup": f"4:memory:{own}\n1:cpu:/x\n0::/y",
        "proc/self/mountinfo": f"{CPU}\n{V1.format(root=at)}",
        f"{base}/memory.limit_in_bytes": 400 * MB,
        f"{base}/memory.usage_in_bytes": 300 * MB,
        f"{base}/memory.stat": f"inactive_file 7\ntotal_inactive_file {20 * MB}",
        f"{base}/below/memory.limit_in_bytes": 9223372036854771712,
        f"{base}/below/memory.usage_in_bytes": 1,
        f"{base}/below/memory.stat": "cache 1",
    }
    write(tmp_path, files)
    (use,) = measured(tmp_path).values()
    assert (use.left, use.total) == (120 * MB, 400 * MB)


@pytest.mark.parametrize("path", ["/../sibling", "/gone"])
def test_a_cgroup_that_cannot_be_seen_leaves_those_above(tmp_path: Path, path: str) -> None:
    files = {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": V2.format(root="/")}
    write(tmp_path, {**files, **group("sys/fs/cgroup", 500 * MB, 200 * MB)})
    assert measured(tmp_path)["memory.max"].left == 300 * MB


def test_a_limit_of_addresses_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "address_limit", {"AS": 400 * MB, "DATA": None}.get)
    use = measured(tmp_path)["-v"]
    assert (use.used, use.left, use.kills) == (300 * MB, 100 * MB, False)


def test_this_process_is_measured() -> None:
    assert all(each.used > 0 and each.total > 0 for each in MemoryLimits(1 << 50).measure())
