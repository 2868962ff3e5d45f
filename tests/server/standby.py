"""The threads that servers of tests have."""

from __future__ import annotations

from psnb._src.utils.standby import StandbyThreads

THREADS = StandbyThreads("standby", 4)
NO_THREADS = StandbyThreads("none", 0)
