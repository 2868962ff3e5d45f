"""The static summary: what saved notebooks show."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from psnb._src.monitor.html.summary import BOTTOM, LEFT, MOST_FAILURES, RIGHT, TOP, render
from psnb._src.monitor.html.tables import MOST_ROWS
from psnb._src.monitor.protocol import Update
from tests.monitor.updates import full_update, metric

HOSTILE = '<img src=x onerror="alert(1)">&\''

ELEMENTS = {
    *("div", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"),
    *("svg", "title", "rect", "path", "text", "span"),
}


class Reader(HTMLParser):
    """Collects a page's elements and text, and checks that elements nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def failure(number: int, text: str = "boom") -> dict[str, object]:
    return {
        "number": number,
        "time": 1.0,
        "worker": text,
        "closure": text,
        "error": f"{text} {number}",
        "traceback": text,
    }


def hostile() -> Update:
    return full_update(
        summary={"state": HOSTILE},
        identity={"name": HOSTILE},
        notice=HOSTILE,
        workers=[{"name": HOSTILE, "host": HOSTILE, "state": HOSTILE, "last_error": HOSTILE}],
        servers=[{"name": HOSTILE, "state": HOSTILE}],
        metrics=[metric(HOSTILE, [1.0, 2.0])],
        failures=[failure(0, HOSTILE)],
        checkpoint={"state": "failed", "path": "", "share": 0.0, "error": HOSTILE, "held": 0.0},
    )


def test_state_and_counters_are_there() -> None:
    text = Reader(render(full_update())).text
    for part in ("strategy-1", "running", "1:02:05", "completed 12,345", "retried 3", "queued 5"):
        assert part in text
    assert "workers lost 2" in text
    assert "servers lost" not in text  # as none was


def test_workers_and_servers_have_their_rows() -> None:
    text = Reader(render(full_update())).text
    for part in ("alice", "ready", "50%", "117 MiB", "keeper", "serving", "4.01 MiB"):
        assert part in text


def test_the_phases_of_closures_are_shown_and_what_workers_wait_for() -> None:
    phases = [0.38, 0.02, 0.5, 0.0, 0.1]
    html = render(full_update(summary={"phases": phases}, starved=f"workers wait for {HOSTILE}"))
    assert "read 38% · pull 2% · compute 50% · push 0% · commit 10%; workers wait for" in html
    assert HOSTILE not in html
    assert "time of closures" not in render(full_update())


def test_a_note_stands_in_it() -> None:
    assert "as it was" in Reader(render(full_update(), "as it was")).text


def test_a_metric_has_its_figures_and_a_chart() -> None:
    page = Reader(render(full_update(metrics=[metric("loss", [3.0, 2.0, 1.0])])))
    assert "loss" in page.text
    assert "(avg 1.5, 3 values)" in page.text
    assert page.elements.count("svg") == 1
    assert page.elements.count("path") == 2


def test_the_axes_of_a_chart_have_their_numbers_and_names() -> None:
    html = render(full_update(metrics=[metric("loss", [3.0, 1.25, 2.0])]))
    assert re.findall("<text[^>]*>([^<]*)", html) == ["3", "1.25", "2", "0", "step"]
    constant = render(full_update(metrics=[metric("loss", [0.5])]))
    assert re.findall("<text[^>]*>([^<]*)", constant) == ["0.5", "0", "step"]


def test_validation_is_in_the_chart_of_its_metric() -> None:
    metrics = [metric("auc", [0.5, 0.75]), metric("val_auc", [0.25, 1.0]), metric("val_x", [1.0])]
    page = Reader(html := render(full_update(metrics=metrics)))
    assert page.elements.count("svg") == 2
    assert page.elements.count("path") == 6
    said = "auc: 0.75 at step 1, from 0.5; lowest 0.5 at 0, highest 0.75 at 1; val_auc: 1 at step 1"
    assert said in page.text
    assert re.findall("<text[^>]*>([^<]*)", html)[:2] == ["1", "0.25"]


def test_charts_share_their_steps_and_mark_where_epochs_begin() -> None:
    epochs = [{"epoch": number, "step": 10 * number - 10, "time": 0.0} for number in (1, 2)]
    metrics = [
        metric("loss", np.linspace(1.0, 0.5, 21), np.full(21, 0.75)),
        metric("auc", [0.5, 0.75]),
    ]
    html = render(full_update(metrics=metrics, epochs=epochs))
    texts = re.findall("<text[^>]*>([^<]*)", html)
    along = ["20", "0", "step", "epoch 1", "2"]
    assert texts == ["1", "0.5", *along, "0.75", "0.5", *along]
    begin = f'd="M{(LEFT + RIGHT) / 2:.1f},{TOP}V{BOTTOM}"'
    assert html.count(begin) == 2  # of the second epoch, in each chart


def test_an_abandoned_branch_is_paler_and_a_rewind_dashed() -> None:
    rewinds = [{"step": 3, "time": 3.0, "kept": 1.0}]
    html = render(full_update(metrics=[metric("loss", np.arange(6.0))], rewinds=rewinds))
    paths = re.findall('<path d="([^"]*)"[^>]*stroke-opacity="([^"]*)"', html)
    assert [(path.count("L"), opacity) for path, opacity in paths] == [
        (0, "0.8"),
        (1, "0.45"),
        (2, "0.15"),  # from the point where it leaves the other
        (2, "0.35"),
        (1, "0.45"),
    ]


def test_an_outlier_is_a_triangle_at_the_edge() -> None:
    values = np.linspace(1.0, 0.5, 40)
    values[7] = 1e6
    html = render(full_update(metrics=[metric("loss", values)]))
    assert re.findall("<text[^>]*>([^<]*)", html)[:2] == ["1", "0.5"]
    (place,) = re.findall(r'd="M([\d.]+),10l3,-4l3,4z"', html)
    assert float(place) + 3 == pytest.approx(LEFT + 7 / 39 * (RIGHT - LEFT), abs=0.1)


def test_a_single_value_has_no_average_and_is_one() -> None:
    text = Reader(render(full_update(metrics=[metric("loss", [1.5])]))).text
    assert "(1 value)" in text


def test_how_far_training_is_stands_at_the_top() -> None:
    training = {"epoch": 3, "epochs": 100, "batch": 1200, "batches": 3600, "validating": None}
    text = Reader(render(full_update(summary={"training": training, "eta": 245.0}))).text
    assert "epoch 3 of 100 · batch 1,200 of 3,600 · 4:05 left" in text
    validating = {"training": training | {"validating": (3, 16)}}
    text = Reader(render(full_update(summary=validating))).text
    assert "batch 1,200 of 3,600 · validating, 3 of 16 parts" in text
    one = {"epoch": None, "epochs": None, "batch": 120, "batches": None, "validating": None}
    text = Reader(render(full_update(summary={"training": one}))).text
    assert "batch 120" in text
    assert "epoch" not in text


def test_a_saved_checkpoint_is_shown_with_its_path() -> None:
    saved = {"state": "saved", "path": "/there/ckpt-1", "share": 1.0, "error": "", "held": 0.0}
    assert "checkpoint saved /there/ckpt-1" in Reader(render(full_update(checkpoint=saved))).text


def test_the_latest_failures_are_shown_with_their_tracebacks() -> None:
    rows = [failure(number) for number in range(MOST_FAILURES + 1)]
    page = Reader(render(full_update(failures=rows)))
    assert f"boom {MOST_FAILURES}" in page.text
    assert "boom 0:" not in page.text
    assert page.elements.count("pre") == MOST_FAILURES


def test_a_thousand_workers_do_not_make_a_huge_page() -> None:
    rows = [{"name": f"w{number}", "index": number} for number in range(1000)]
    page = Reader(render(full_update(workers=rows)))
    assert f"and {1000 - MOST_ROWS} workers more" in page.text
    assert page.elements.count("tr") < 2 * MOST_ROWS


def test_names_are_text_never_markup() -> None:
    page = render(hostile())
    read = Reader(page)
    assert set(read.elements) <= ELEMENTS
    assert not [name for name in read.attributes if name.startswith("on")]
    assert read.text.count(HOSTILE) >= 12


def test_nothing_in_it_runs_or_is_loaded() -> None:
    read = Reader(render(hostile()))
    assert not read.attributes & {"src", "href"}
    assert not set(read.elements) & {"script", "style", "img", "link", "iframe"}


@pytest.mark.parametrize(
    "values",
    [[1.0], [2.0, 2.0, 2.0], [np.nan, 1.0, np.nan, 3.0], [1.0, np.inf, 3.0], [-1e300, 1e300]],
    ids=["one point", "a constant", "with gaps", "with an infinity", "huge"],
)
def test_charts_hold_finite_coordinates_only(values: list[float]) -> None:
    page = render(full_update(metrics=[metric("loss", values)]))
    assert "<svg" in page
    assert 'd="M' in page
    for path in page.split(' d="')[1:]:
        assert not {"nan", "inf"} & set(path.split('"')[0].replace("M", " ").split(","))
        assert "nan" not in path.split('"')[0]
        assert "inf" not in path.split('"')[0]


def test_a_series_of_nothing_but_nans_has_no_chart() -> None:
    page = render(full_update(metrics=[metric("loss", [np.nan, np.nan, np.nan])]))
    assert "<svg" not in page
    assert "nan" in page


def test_a_gap_breaks_the_line() -> None:
    page = render(full_update(metrics=[metric("loss", [1.0, 2.0, np.nan, 3.0, 4.0])]))
    assert page.split(' d="')[1].split('"')[0].count("M") == 2


def test_a_long_series_is_thinned_out() -> None:
    page = render(full_update(metrics=[metric("loss", np.arange(50_000.0))]))
    assert len(page) < 20_000
