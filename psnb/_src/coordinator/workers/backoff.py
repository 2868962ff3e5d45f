"""Backoff: growing pauses between attempts to reach the same address. Pure."""

from __future__ import annotations

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


class Backoff:
    """Tells when an address that failed may be tried again.

    Times are seconds of one clock, whichever the caller uses.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # the pause and its end, by address

    def failed(self, address: str, now: float) -> None:
        """Note a failed attempt: the next pause is twice as long as the last."""
        last, _ = self._pauses.get(address, (_FIRST_PAUSE / 2, 0.0))
        pause = min(2 * last, _LONGEST_PAUSE)
        self._pauses[address] = (pause, now + pause)

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        self._pauses.pop(address, None)

    def ready(self, address: str, now: float) -> bool:
        """Return whether the address may be tried."""
        return address not in self._pauses or now >= self._pauses[address][1]

    def keep(self, addresses: set[str]) -> None:
        """Forget all other addresses."""
        for address in set(self._pauses) - addresses:
            del self._pauses[address]
