"""Charts: averages that keep the area, axes of round numbers, and well-formed SVG whatever the names are."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintyard.app.charts import Line, Panel, averages, clean, steps, svg, time_unit

SVG = "{http://www.w3.org/2000/svg}"


def test_averages_of_a_step() -> None:
    # 10 from 0 to 30, 0 from 30 to 50, 4 from 50 on
    assert averages([0, 30, 50], [10, 0, 4], 0, 100, 4) == pytest.approx([10, 2, 4, 4])
    assert averages([50], [8], 0, 100, 2) == pytest.approx([0, 8])
    assert averages([], [], 0, 100, 2) == [0, 0]
    assert averages([0], [7], 5, 5, 3) == [7, 7, 7]


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 10**7)), min_size=1, max_size=40),
    st.integers(1, 50),
)
def test_averages_keep_the_area(changes: list[tuple[int, int]], buckets: int) -> None:
    by_time = dict(sorted(changes))
    at, values = list(by_time), list(by_time.values())
    end = 1_200
    area = sum(value * ((at[i + 1] if i + 1 < len(at) else end) - at[i]) for i, value in enumerate(values))
    found = averages(at, values, 0, end, buckets)
    assert len(found) == buckets
    assert sum(found) * end / buckets == pytest.approx(area, rel=1e-9, abs=1e-6)


@given(st.floats(1e-6, 1e12), st.integers(2, 10))
def test_steps_reach_the_most(most: float, about: int) -> None:
    marks = steps(most, about)
    assert marks[0] == 0
    assert marks[-1] >= most * 0.9998
    assert 2 <= len(marks) <= about + 2
    assert steps(0) == steps(-1) == steps(float("nan")) == [0, 1]


def test_time_unit() -> None:
    assert [time_unit(ms)[0] for ms in (0, 5_000, 200_000, 4 * 3_600_000, 9 * 86_400_000)] == [
        "seconds",
        "seconds",
        "minutes",
        "hours",
        "days",
    ]


def panels(name: str = "GPU") -> list[Panel]:
    return [
        Panel("In use", "percent", [Line(name, [0.0, 50.0, 100.0]), Line("CPU", [10.0, 20.0, 30.0])]),
        Panel("Waiting", "jobs", [Line("pending", [0.0, 0.0, 0.0])]),
    ]


def test_svg_has_axes_with_units_and_a_legend() -> None:
    root = ElementTree.fromstring(svg("A trace", "on nodes", 7_200_000, panels()))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"A trace", "on nodes", "percent", "jobs", "GPU", "CPU", "100", "120"} <= set(texts)
    assert "time since the first arrival (minutes)" in texts
    assert "pending" not in texts, "a single line needs no legend"


def test_svg_stays_inside_the_picture() -> None:
    root = ElementTree.fromstring(svg("t", "s", 10_000, panels()))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    curves = [path.attrib["d"] for path in root.iter(f"{SVG}path") if path.attrib["stroke"] != "#555555"]
    assert len(curves) == 3
    for curve in curves:
        for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", curve):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


@given(st.text(max_size=30))
def test_svg_is_well_formed_whatever_the_names(name: str) -> None:
    root = ElementTree.fromstring(svg(name, name, 10_000, panels(name)))
    assert root.find(f"{SVG}title") is not None
    assert not list(root.iter(f"{SVG}script"))


def test_svg_is_bounded() -> None:
    with pytest.raises(ValueError, match="1000 points"):
        svg("t", "s", 1, [Panel("p", "u", [Line("l", [0.0] * 1_001)])])


def test_clean() -> None:
    assert clean("a\x1b[31mb\n") == "a?[31mb?"
