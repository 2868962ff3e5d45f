"""FetchLines: prints metrics every n batches, as Paddle's fetch list does. One thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from psnb._src.utils.checks import integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError


class FetchLines:
    """Lines such as ``epoch 1 batch 400: loss 0.4312 auc 0.7812 batch_auc 0.7901``.

    Parameters
    ----------
    names : iterable of str
        Metrics; see `Trainer.train_from_dataset`.
    every : int
        The print period, in batches.

    Raises
    ------
    ConfigurationError
        If the names are not a list of str, or the period is not positive.
    """

    def __init__(self, names: Iterable[str], every: int) -> None:
        self._names = [names] if isinstance(names, str) else list(names)
        if not all(isinstance(each, str) for each in self._names):
            raise ConfigurationError(f"fetch takes names of metrics, found {shown(self._names)}")
        self._every = integer("fetch_every", every, 1)
        self._printed = 0
        self._checked = False

    def begin(self) -> None:
        """Count batches from zero."""
        self._printed = 0

    def due(self, batch: int) -> bool:
        """Return whether a line is due; once for each print period."""
        if not self._names or batch // self._every <= self._printed // self._every:
            return False
        self._printed = batch
        return True

    def line(self, epoch: int, batch: int, values: Mapping[str, float]) -> str:
        """Return a line; a metric that was not reported since the last one is shown as ``-``.

        Raises
        ------
        ConfigurationError
            As `check`.
        """
        self.check(values)
        shown = (
            f"{name} {values[name]:.4f}" if name in values else f"{name} -" for name in self._names
        )
        return f"epoch {epoch} batch {batch}: {' '.join(shown)}"

    def check(self, values: Mapping[str, float]) -> None:
        """Check the names by the first values that there are; with each line, and after an epoch.

        Not as soon as a closure has reported: a step need not report all of them each time.

        Raises
        ------
        ConfigurationError
            If they lack one of the names: lines would lack it for ever.
        """
        if not values or self._checked:
            return
        self._checked = True
        for name in self._names:
            if name not in values:
                near = get_close_matches(name, values, 3)
                meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise ConfigurationError(
                    f"fetch has {name!r}, which the step does not report: it reports "
                    f"{', '.join(map(repr, sorted(values)))}.{meant} psnb.report({name}=...) in "
                    "the step adds it"
                )
