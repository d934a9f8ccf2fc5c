"""Where the time went: shares that add up, and charts that are XML."""

from xml.etree import ElementTree

import pytest

from quintain.store import Store
from quintain.viewer.charts import Point, area_chart
from quintain.viewer.report import report
from quintain.viewer.timeline import timeline


async def stored(folder, bins):
    with Store.begin(folder, kind="train", identity={}) as store:
        for second, values in bins:
            await store.metrics(second, values, scope="timeline")


async def test_table_and_charts(tmp_path):
    bins = [
        (at, {"learner/update": 0.25, "learner/rollouts": 0.75, "rollouts/policy": 6.0,
              "rollouts/queue": 2.0, "generation": 0.5})
        for at in range(1000)
    ]  # fmt: skip
    await stored(tmp_path, bins)
    with Store.read(tmp_path) as store:
        view = timeline(store)
    assert dict(view.busy) == pytest.approx({"learner": 0.25, "generation": 0.5})
    rows = {(row.who, row.what): (row.seconds, row.share) for row in view.table}
    assert rows["learner", "waits for rollouts"] == pytest.approx((750.0, 0.75))
    assert rows["rollouts", "wait for a place, or for another attempt"][1] == pytest.approx(0.25)
    for chart in view.charts:
        ElementTree.fromstring(str(chart))
    assert len(str(view.charts[0])) < 60_000, "neighbours are joined"
    text = report(tmp_path).read_text()
    assert "Where the time went" in text
    assert "waits for rollouts" in text


async def test_a_run_without_one_has_none(tmp_path):
    await stored(tmp_path, [])
    with Store.read(tmp_path) as store:
        assert timeline(store) is None
    assert "Where the time went" not in report(tmp_path).read_text()


def test_areas_are_stacked():
    chart = area_chart(
        "<t>", {"a&b": [Point(0, 0.5), Point(1, None)], "c": [Point(0, 0.5), Point(1, 1.0)]}, 2.0
    )
    tree = ElementTree.fromstring(str(chart))
    first, second = [node.get("points") for node in tree.iter() if node.tag.endswith("polygon")]
    assert len(first.split()) == len(second.split()) == 8
    assert "&lt;t&gt;" in str(chart)
