"""When a worker that is missing is reported, and one that failed may be tried again. Pure."""

from __future__ import annotations

from collections.abc import Collection


class MissingWorkers:
    """Reports each absent worker once, until it comes or nothing waits for it any more.

    Times are seconds of one clock, whichever the caller uses.

    Parameters
    ----------
    patience : float
        Seconds that a worker may be absent before a warning names it; a nanny starts one again
        sooner.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[object, float] = {}
        self._reported: set[object] = set()

    def due(
        self, awaited: Collection[object], here: Collection[object], now: float
    ) -> list[object]:
        """Return those that are to be reported now.

        Parameters
        ----------
        awaited : collection
            Names and indices of the workers that closures wait for.
        here : collection
            Likewise of those that are here.
        now : float
            The time.
        """
        absent = [each for each in awaited if each not in here]
        self._since = {each: self._since.get(each, now) for each in absent}
        self._reported.intersection_update(absent)
        late = [
            each
            for each, since in self._since.items()
            if each not in self._reported and now - since >= self._patience
        ]
        self._reported.update(late)
        return late


_FIRST_PAUSE = 0.5


_LONGEST_PAUSE = 8.0


class Backoff:
    """Says when an address that failed may be tried again.

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
