"""The report is one inert file that says what the store says."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from trajectories import HOSTILE, everything, faulty

from quintain.errors import StoreError
from quintain.store import Store
from quintain.verdict import Outcome, Verdict
from quintain.viewer.charts import Bar, Point, interval_chart, line_chart, stacked_bar, ticks
from quintain.viewer.report import report

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Reads a page: tags, text, and whether every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        assert self.stack == [], f"unclosed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack[-1] == tag, f"</{tag}> closes <{self.stack[-1]}>"
        self.stack.pop()

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def outcome(task, sample, solved, purpose, **more):
    return everything(
        task_id=task,
        sample_index=sample,
        attempt=0,
        purpose=purpose,
        outcome=Outcome.SOLVED if solved else Outcome.FAILED,
        verdict=Verdict.of(solved),
        **more,
    )


@pytest.fixture
async def run(tmp_path):
    """A training run: evals at two versions, rollouts, metrics, a checkpoint, hostile text."""
    store = Store.begin(
        tmp_path / "run",
        kind="train",
        identity={"seed": 3},
        config={
            "note": HOSTILE,
            "seed": 3,
            "versions": {"quintain": "9.9"},
            "git": {"commit": "abcdef0123456789", "changed": True},
        },
    )
    for version, solved in ((0, 3), (20, 9)):
        purpose = f"mine:eval@v{version}"
        await store.event(
            "eval.begun", {"purpose": purpose, "environment": "shell", "planned": 24, "seed": 11}
        )
        for task in range(12):
            await store.commit(outcome(f"t{task}", 0, task < solved, purpose))
    for sample in range(4):
        await store.commit(outcome(f"<img src=x>{HOSTILE}", sample, sample % 2 == 0, "train"))
    await store.commit(faulty().model_copy(update={"purpose": "train"}))
    await store.commit(faulty().model_copy(update={"purpose": "mine:eval@v20"}))
    for step in range(30):
        await store.metrics(
            step, {"reward": step / 30, "loss": math.nan if step == 7 else -step, HOSTILE: 1.0}
        )
    path = store.folder / "checkpoints" / "v20"
    await store.checkpoint(version=20, step=20, path=path, hash="ab" * 32, state={})
    await store.event("training.mode", {"why": HOSTILE})
    await store.event("loop.selected", {"version": 20, "step": 20, "why": "step 20: the best"})
    await store.metrics(20, {"mine/mean": 0.75}, scope="eval")
    store.close()
    return tmp_path / "run"


async def test_the_page_says_what_the_store_says(run):
    path = report(run)
    assert path == run / "report.html"
    page = Page(path.read_text())
    for expected in (
        "train run",
        "quintain 9.9 · commit abcdef012345 with changes",
        "shell · mine:eval@v0",
        "0.250 [",  # 3 of 12
        "0.750 [",  # 9 of 12, the faulty sample left out
        "0.692 [",  # and 9 of 13 with it as a failure
        "+0.500 [",
        "v0 → v20",
        "12 6 0 6",  # shared tasks, better, worse, tied
        "9 solved, 3 failed, 1 infra_error",
        "2 solved, 2 failed, 1 infra_error",
        "shell · mine:eval@v0: 12 of 24 samples are done",
        "training: 1 of 5 rollouts have no reward and are kept out of advantages (1 infra_error)",
        "pass@1 is 0.750 without them and 0.692 with them as failures",
        "fault in sandbox: SandboxError: the sandbox died",
        f"--policy POLICY --checkpoint {run}@20 --only t9:0 --seed 11 --purpose mine:eval@v20",
        "Selected: version 20, step 20: the best.",
        "--seed 3 --purpose train # sampled by version 4, whose weights were not kept",
        "1 checkpoints",
        "training.mode",
    ):
        assert expected in page.text, expected


async def test_the_page_is_inert_and_needs_nothing(run):
    text = report(run).read_text()
    page = Page(text)
    assert "<script" in HOSTILE
    assert "alert(&#39;x&#39;)" in text  # it is there, as text
    assert not {"script", "img", "link", "iframe", "object", "base"} & set(page.tags)
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert not [a for a in page.attributes if a[1] in ("src", "href", "action")]
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert "{{ 7*7 }}" in text  # a template in the data is not a template
    assert "49" not in re.findall(r"\{\{.*?\}\}", text)
    assert "\x1b" not in text


async def test_every_picture_is_well_formed(run):
    pictures = re.findall(r"<svg.*?</svg>", report(run).read_text(), re.DOTALL)
    # change, evals, curve, two outcome bars and training's, three metrics
    assert len(pictures) == 9
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert not re.search(r"[\s\",](nan|-?inf)[\s\",]", picture)


async def test_a_run_with_nothing_in_it(tmp_path):
    Store.begin(tmp_path / "r", kind="eval", identity={}).close()
    page = Page(report(tmp_path / "r", tmp_path / "out.html").read_text())
    assert "eval run" in page.text
    with pytest.raises(StoreError, match="holds no run"):
        report(tmp_path)


async def test_a_run_being_written(tmp_path):
    store = Store.begin(tmp_path / "r", kind="eval", identity={})
    await store.commit(outcome("t", 0, True, "eval:eval@v0"))
    assert "1 solved" in Page(report(tmp_path / "r").read_text()).text
    await store.commit(outcome("t", 1, True, "eval:eval@v0"))
    assert "2 solved" in Page(report(tmp_path / "r").read_text()).text
    store.close()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0, 100, [0, 50, 100]),
        (-3, 7, [-5, 0, 5, 10]),
        (5, 5, [4.5, 5, 5.5]),
        (math.nan, 1, [0, 1]),
    ],
)
def test_ticks_are_round_and_span_the_data(low, high, expected):
    found = ticks(low, high)
    assert all(round(e, 9) in [round(t, 9) for t in found] for e in expected)
    if math.isfinite(low):
        assert found[0] <= low
        assert found[-1] >= high
        assert 2 <= len(found) <= 8


def test_lines_have_gaps_and_bands():
    points = [
        Point(0, 1.0, 0.5, 1.5),
        Point(1, 2.0, 1.5, 2.5),
        Point(2, None),
        Point(3, math.inf),
        Point(4, 3.0, 2.0, 4.0),
        Point(5, 3.0, 2.0, 4.0),
    ]
    chart = line_chart("a < b", {"x": points, "y<": points[:1]})
    root = ElementTree.fromstring(chart)
    assert len([e for e in root if e.tag == "polyline"]) == 2
    assert len([e for e in root if e.tag == "polygon"]) == 1
    assert "a &lt; b" in chart
    assert "y&lt;" in chart
    ElementTree.fromstring(line_chart("none", {"x": []}))


def test_intervals_and_bars():
    chart = interval_chart("t", [Bar("a", 0.5, 0.4, 0.6), Bar("b", math.nan, 0, 1)], 0, 1)
    root = ElementTree.fromstring(chart)
    assert len([e for e in root if e.tag == "circle"]) == 1
    assert "no sample" in chart
    bar = ElementTree.fromstring(stacked_bar({"a": 3, "b": 1, "c": 0}, {"a": "red"}))
    assert [float(e.get("width")) for e in bar] == [225.0, 75.0]
    assert stacked_bar({}, {}).startswith("<svg")
