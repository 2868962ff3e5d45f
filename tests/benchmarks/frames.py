"""Whether a page keeps up with a large run: ``python -m tests.benchmarks.frames``.

In Chromium, the widget as it is shipped, in a page of its own: 100 workers and 5 metrics of 10,000
points each, and then real updates at 4 a second, in which all of them change. Printed are the time
between frames and what an update costs the page. The bar is that no frame is dropped. Chromium
draws without a graphics card here, on the cores that the benchmark itself runs on.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

import psnb._src.monitor.widget
from psnb._src.monitor.feed import Feed
from tests.browser.chromium import launch
from tests.monitor.viewed import WORKER, FakeViewed

WORKERS, METRICS, POINTS = 100, 5, 10_000
UPDATES, INTERVAL = 40, 0.25
FRAME = 1000 / 60

STATIC = Path(psnb._src.monitor.widget.__file__).parent / "static"

PAGE = """
<!doctype html><meta charset="utf-8"><style>{style}</style><div id="place"></div>
<script type="module">
{script}
</script>
"""

START = """
async ([first, source]) => {
  const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
  const widget = (await import(url)).default();
  const listeners = [];
  const model = {
    get: () => first, set() {}, save_changes() {}, send() {}, off() {},
    on: (event, listener) => { if (event === 'msg:custom') listeners.push(listener); },
  };
  window.say = (text) => listeners.forEach((listener) => listener({text}));
  await widget.initialize({model});
  await widget.render({model, el: document.getElementById('place')});
  window.gaps = [];
  window.took = [];
  let last = 0;
  const tick = (now) => {
    if (last) gaps.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}
"""

SAY = (
    "text => { const began = performance.now(); say(text); took.push(performance.now() - began); }"
)


def updates() -> list[str]:
    """Return a full update and those after it, as JSON."""
    viewed = FakeViewed(state="running")
    for number in range(POINTS - UPDATES * 25 - 1):
        values = {f"metric {metric}": 1 / (1 + number + metric) for metric in range(METRICS)}
        viewed.records.history.add(float(number), values)
    rows = [replace(WORKER, name=f"worker-{index}", index=index) for index in range(WORKERS)]
    viewed.set(workers=tuple(rows))
    feed, now = Feed(), 1_700_000_000.0
    told = [feed.next(viewed, now)]
    for _ in range(UPDATES):
        now += INTERVAL
        done = viewed.now.completed
        for _ in range(25):
            values = {f"metric {metric}": 1 / (1 + done + metric) for metric in range(METRICS)}
            viewed.records.history.add(now, values)
        rows = [replace(row, completed=row.completed + 25, busy=0.5) for row in rows]
        viewed.set(completed=done + 25, workers=tuple(rows))
        for index in range(WORKERS):
            viewed.records.timeline.add(index, [0.2], 0, 1, now)
        told.append(feed.next(viewed, now))
    return [json.dumps(update) for update in told]


def main() -> None:
    first, *later = updates()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1000, "height": 1400})
        file = Path(folder) / "page.html"
        file.write_text(
            PAGE.format(style=(STATIC / "widget.css").read_text(), script=""), encoding="utf-8"
        )
        page.goto(file.as_uri())
        page.evaluate(START, [first, (STATIC / "widget.js").read_text()])
        page.wait_for_function("gaps.length > 60")
        page.evaluate("() => { gaps.length = 0; }")
        for update in later:
            page.evaluate(SAY, update)
            page.wait_for_timeout(1000 * INTERVAL)
        gaps, took = page.evaluate("() => [gaps, took]")
        browser.close()
    late = sum(gap > 1.5 * FRAME for gap in gaps)
    print(
        f"{len(gaps)} frames, {late} of them late (longest {max(gaps):.0f} ms); an update takes "
        f"the page {sum(took) / len(took):.2f} ms, {max(took):.2f} at most, before it draws"
    )


if __name__ == "__main__":
    main()
