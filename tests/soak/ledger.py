"""Ledger: what the parameters must hold, from what closures returned that have ended. Pure.

A closure returns what its attempt has written, so all of it is known to the unit. An *era* begins
with each restoring of a checkpoint: what attempts of earlier eras wrote went with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

PAIRS = 64
"""Pairs of rows: what is added to the one is taken from the other."""


class Written(NamedTuple):
    """What one attempt of a closure has written."""

    era: int
    amount: int
    pairs: Sequence[int]
    number: int


class Found(NamedTuple):
    """What the parameters hold."""

    accounts: tuple[float, float]
    counters: tuple[int, int]
    poison: int
    rows: np.ndarray
    numbers: np.ndarray


class Pushes(StrEnum):
    """What becomes of gradients in a mode; and whether closures may be lost with their workers."""

    EXACT = "exact"
    AVERAGED = "averaged"
    MAY_BE_LOST = "may be lost"


@dataclass
class Ledger:
    """What has been written since the parameters were made, or as a checkpoint has it."""

    pushes: Pushes = Pushes.EXACT
    era: int = 0
    amount: int = 0
    closures: int = 0
    rows: np.ndarray = field(default_factory=lambda: np.zeros(2 * PAIRS))
    numbers: list[int] = field(default_factory=list)

    def count(self, written: Written) -> None:
        """Add what a closure has written that returned; nothing if it was of an earlier era."""
        if written.era != self.era:
            return
        self.amount += written.amount
        self.closures += 1
        for pair in written.pairs:
            self.rows[[2 * pair, 2 * pair + 1]] += [written.amount, -written.amount]
        self.numbers.append(written.number)

    def saved(self) -> dict[str, Any]:
        """Return it as JSON has it, for a checkpoint's metadata."""
        return {
            "amount": self.amount,
            "closures": self.closures,
            "rows": self.rows.tolist(),
            "numbers": list(self.numbers),
        }

    def restored(self, saved: Mapping[str, Any]) -> Ledger:
        """Return the ledger of the next era, which begins with a checkpoint's."""
        rows = np.array(saved["rows"])
        known = self.era + 1, saved["amount"], saved["closures"], rows, list(saved["numbers"])
        return Ledger(self.pushes, *known)

    def differences(self, found: Found, lost: int = 0) -> list[str]:
        """Return what is not as it must be while nothing runs, for people.

        Where they may be lost, so many closures may have gone with their workers, each wholly.
        """
        lost = lost if self.pushes is Pushes.MAY_BE_LOST else 0
        wrong = []
        amount = found.accounts[0] if lost else self.amount
        if found.accounts != (amount, -amount):
            wrong.append(f"accounts {found.accounts}, not {amount} and its negative")
        closures = found.counters[0]
        if found.counters != (closures, closures) or not 0 <= self.closures - closures <= lost:
            may = f", less {lost} at most" if lost else ""
            wrong.append(f"counters {found.counters}, not {self.closures}{may}, twice")
        if found.poison:
            wrong.append(f"{found.poison} closures that raised have written")
        pairs = found.rows.reshape(-1, 2)
        # Geo adds thirds, in another order on each server: they differ in the last bit of float32.
        # What is lost of a closure is a third at least.
        rounding = 0.01 if self.pushes is Pushes.MAY_BE_LOST else 0.0
        if unequal := np.flatnonzero(np.abs(pairs.sum(axis=1)) > rounding).tolist():
            wrong.append(f"pairs of rows {unequal} do not cancel out: {pairs[unequal].tolist()}")
        if self.pushes is Pushes.EXACT and (found.rows != self.rows).any():
            which = np.flatnonzero(found.rows != self.rows)
            wrong.append(f"rows {which.tolist()} are off by {(found.rows - self.rows)[which]}")
        return wrong + self._wrong_numbers(found.numbers, lost)

    def _wrong_numbers(self, found: np.ndarray, lost: int) -> list[str]:
        if self.pushes is Pushes.EXACT:
            bad = int((found != 1).sum())
            return [f"{bad} ids are not there once: {np.unique(found)}"] if bad else []
        absent = int((found <= 0).sum())
        if absent > (lost if self.pushes is Pushes.MAY_BE_LOST else 0):
            return [f"{absent} ids are not there, of which {lost} may be lost"]
        return []
