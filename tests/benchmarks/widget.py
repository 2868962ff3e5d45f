"""What the live widget costs the kernel: ``python -m tests.benchmarks.widget``.

In a real kernel, with a coordinator that is made up: between two updates every worker ends closures
and every metric gets points, as in a run. Printed are the processor time of the whole kernel for an
update (the publisher's, the comm's and the socket's), its size on the wire, and how many messages
a second a running coordinator sends. The bar is 1 ms, and 10 messages a second.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.manager import start_new_kernel

SIZES = [(2, 1, 10_000), (100, 5, 50_000)]
"""Workers, metrics, points on the page of all metrics together."""

UPDATES = 200
LIVE_SECONDS = 5.0

MAKE = """
import json, time
from dataclasses import replace
from psnb._src.monitor.widget import CoordinatorWidget
from tests.monitor.viewed import WORKER, FakeViewed

def make(workers, metrics, points, interval):
    viewed = FakeViewed(state="running")
    for number in range(points // metrics):
        viewed.records.history.add(
            float(number), {f"metric {metric}": 1 / (1 + number) for metric in range(metrics)}
        )
    rows = [replace(WORKER, name=f"worker-{index}", index=index) for index in range(workers)]
    viewed.set(workers=tuple(rows))
    return viewed, CoordinatorWidget(viewed, lambda update: None, interval)

def change(viewed, metrics):
    done = viewed.now.completed
    for number in range(25):
        viewed.records.history.add(
            time.time(), {f"metric {metric}": 1 / (1 + done) for metric in range(metrics)}
        )
    workers = [replace(w, completed=w.completed + 25, busy=0.5) for w in viewed.now.workers]
    viewed.set(completed=done + 25, workers=tuple(workers))
"""

COST = """
viewed, widget = make({workers}, {metrics}, {points}, 1e6)
tick = widget._publisher._tick
spent = 0.0
for _ in range({updates}):
    change(viewed, {metrics})
    began = time.process_time()
    tick()
    time.sleep(0.01)  # the thread that owns the socket has its turn
    spent += time.process_time() - began
size = len(json.dumps(widget._latest))
widget.close()
print(1000 * spent / {updates}, size)
"""

BARE = """
import ipywidgets
bare = ipywidgets.DOMWidget()
began = time.process_time()
for _ in range({updates}):
    bare.send({{"text": "x"}})
    time.sleep(0.01)
print(1000 * (time.process_time() - began) / {updates})
"""

LIVE = """
viewed, widget = make({workers}, {metrics}, {points}, 0.25)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    change(viewed, {metrics})
    time.sleep(0.02)
widget.close()
"""


def main() -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        run(client, MAKE)
        printed, _ = run(client, BARE.format(updates=UPDATES))
        print(f"any message of any widget takes {float(printed):.2f} ms of processor time here")
        print("workers  points   ms of processor time an update   kB an update   messages/s")
        for workers, metrics, points in SIZES:
            size = {"workers": workers, "metrics": metrics, "points": points}
            printed, _ = run(client, COST.format(updates=UPDATES, **size))
            cost, length = map(float, printed.split())
            _, messages = run(client, LIVE.format(seconds=LIVE_SECONDS, **size))
            print(
                f"{workers:7}  {points:6}   {cost:29.2f}   {length / 1000:12.1f}"
                f"   {messages / LIVE_SECONDS:10.1f}"
            )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client: Any, code: str) -> tuple[str, int]:
    """Run code in the kernel; return what it printed and how many comm messages it sent."""
    printed, messages = [], 0

    def see(message: dict[str, Any]) -> None:
        nonlocal messages
        kind, content = message["msg_type"], message["content"]
        messages += kind == "comm_msg"
        if kind == "stream":
            printed.append(content["text"])
        assert kind != "error", "\n".join(content["traceback"])

    client.execute_interactive(code, output_hook=see, timeout=120)
    return "".join(printed), messages


if __name__ == "__main__":
    main()
