"""The live dashboard of a coordinator on a page, as people read and press it."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.conftest import DEADLINE, wait_until

PATIENCE = 30_000
"""Milliseconds after which a wait gives up."""


class Dashboard:
    """A dashboard in some part of a page.

    Attributes
    ----------
    root : playwright.sync_api.Locator
        The part.
    """

    def __init__(self, root: Locator) -> None:
        self.root = root
        self._state = root.locator(".psnb-top .psnb-state")

    def wait(self, deadline: float = DEADLINE) -> None:
        """Wait until it is there, so many seconds at most."""
        self._state.wait_for(timeout=1000 * deadline)

    def wait_for_state(self, state: str) -> None:
        """Wait until the coordinator's state is shown to be this."""
        expect(self._state).to_have_text(state, timeout=PATIENCE)

    def count(self, counter: str) -> int:
        """Return a counter: queued, in flight, completed, retried, failed or cancelled."""
        return int(re.sub(r"\D", "", self._counter(counter).inner_text()))

    def wait_for_more(self, counter: str, than: int, deadline: float = DEADLINE) -> None:
        """Wait until a counter is greater, so many seconds at most."""
        wait_until(lambda: self.count(counter) > than, f"more than {than} {counter}", deadline)

    def press(self, button: str) -> None:
        """Click a button."""
        self.root.get_by_role("button", name=button).click(timeout=PATIENCE)

    def open_sections(self) -> None:
        """Unfold all that is folded."""
        closed = self.root.locator("details.psnb-section:not([open]) > summary:visible")
        while closed.count():
            closed.first.click(timeout=PATIENCE)

    def wait_for_text(self, text: str | re.Pattern[str]) -> Locator:
        """Wait until a text can be read."""
        found = self.root.get_by_text(text).filter(visible=True).first
        found.wait_for(timeout=PATIENCE)
        return found

    def _counter(self, name: str) -> Locator:
        box = self.root.locator(".psnb-counters > div").filter(
            has=self.root.page.locator("dt", has_text=re.compile(f"^{name}$"))
        )
        return box.locator("dd")
