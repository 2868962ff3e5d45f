"""How far validation is, and the time left meanwhile, as a page shows them."""

from __future__ import annotations

import itertools
import re

from playwright.sync_api import expect

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE

TRAIN = """
def train(iterator):
    next(iterator)
    time.sleep(0.05)
    weights.push([0.001] * 4)

psnb.Trainer(coordinator, train).train_from_dataset(
    lambda epoch: psnb.data.Dataset.range(16).batch(1), epochs=3,
    validation=psnb.data.Dataset.range(48).batch(1))
"""

NOTE = """root => {
    const figure = (name) =>
        [...root.querySelectorAll('.psnb-figures > div')].find((box) =>
            !box.hidden && box.querySelector('dt').textContent === name)
        ?.querySelector('dd').textContent;
    window.noted = [];
    const observer = new MutationObserver(() => {
        window.noted.push([figure('epoch'), figure('validating'), figure('time left')]);
    });
    const options = { subtree: true, childList: true, characterData: true, attributes: true };
    observer.observe(root.querySelector('.psnb-figures'), options);
}"""
"""Notes each change of the figures at the top."""


@REST
def test_while_it_validates_parts_are_counted_and_the_time_left_does_not_grow(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator", TRAIN)
    opened.run(0, 1)
    widget = opened.output(1)
    expect(widget.locator(".psnb-figures")).to_be_visible(timeout=PATIENCE)
    widget.evaluate(NOTE)
    opened.run(2)
    noted = [each for each in opened.page.evaluate("() => window.noted") if each[1]]
    assert {epoch for epoch, _, _ in noted} == {"1 of 3", "2 of 3", "3 of 3"}
    counts = [re.fullmatch(r"(\d+) of (\d+) parts", text) for _, text, _ in noted]
    found = [(int(each[1]), int(each[2])) for each in counts if each]
    assert any(0 < done < of for done, of in found)
    assert len(found) > len(noted) / 2  # else it begins
    for epoch, several in itertools.groupby(noted, lambda each: each[0]):
        left = [float(text.removesuffix(" s")) for _, _, text in several if text.endswith(" s")]
        assert left == sorted(left, reverse=True), (epoch, left)
        assert left or epoch == "1 of 3"  # the first one is not foreseen
