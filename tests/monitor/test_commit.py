"""The commit of a folder, as git itself says, without running it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psnb._src.monitor.commit import commit_of


def git(folder: Path, *arguments: str) -> str:
    config = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *config, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_it_is_that_of_git_in_any_folder_and_state(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "a" / "b").mkdir(parents=True)
    assert commit_of(repository / "a" / "b") == commit
    git(repository, "pack-refs", "--all")
    assert commit_of(repository) == commit
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "second")
    second = git(tmp_path / "tree", "rev-parse", "HEAD")
    assert commit_of(tmp_path / "tree") == second != commit
    git(repository, "checkout", "-q", second)
    assert commit_of(repository) == second


def test_without_a_commit_there_is_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "gone") == ""
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == ""


@pytest.mark.parametrize("head", [b"ref: ../../etc/passwd", b"ref: refs/heads/a", b"\xff", b""])
def test_what_is_no_head_is_none(tmp_path: Path, head: bytes) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(head)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads" / "a").write_text("ref: refs/heads/a")
    assert commit_of(tmp_path) == ""
