"""Addresses of files: paths on this machine, or what fsspec understands, like ``s3://bucket/key``.

Pure. What each protocol needs to be installed, fsspec's errors say.
"""

from __future__ import annotations

import os
import re
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_PROTOCOL = re.compile("[A-Za-z0-9+._-]+://")


def is_local(path: str) -> bool:
    """Return whether a path is one of this machine's files, without a protocol."""
    return _PROTOCOL.match(path) is None


def filesystem_of(address: str) -> tuple[Any, str]:
    """Return the filesystem of an address or local path, and the file's name in it."""
    if is_local(address):
        return LocalFileSystem(), os.path.abspath(address)
    kind = fsspec.get_filesystem_class(address.split("://", 1)[0])
    return kind(**kind._get_kwargs_from_urls(address)), kind._strip_protocol(address)
