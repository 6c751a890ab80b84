"""Line charts: every value has its point, outliers do not flatten the rest, and long runs are thinned."""

import re
import xml.etree.ElementTree

from mmjax.reporting.line_chart import Series, line_chart


def points(chart: str) -> list[tuple[float, int, str]]:
    """Height, step and value of each point."""
    root = xml.etree.ElementTree.fromstring(chart)
    chart_points = []
    for node in root.iter():
        if node.get("class") == "point":
            y = node.get("cy") or re.match(r"M[\d.]+ ([\d.]+)", node.get("d")).group(1)
            step, value = re.fullmatch(r".*, step (\d+): (.*)", node.find("title").text).groups()
            chart_points.append((float(y), int(step), value))
    return chart_points


def chart(values: list[float], **options) -> str:
    series = Series("loss", list(enumerate(values, start=1)), "#4a9cd6")
    return line_chart("Loss", [series], (0, len(values)), **options)


def test_higher_values_stand_higher():
    drawn = points(chart([4.0, 2.0, 3.0, 1.0]))
    assert [(step, value) for _, step, value in drawn] == [(1, "4.000"), (2, "2.000"), (3, "3.000"), (4, "1.000")]
    assert sorted(drawn, key=lambda point: point[0]) == sorted(drawn, key=lambda point: -float(point[2]))


def test_an_outlier_stands_at_the_edge_and_says_its_value():
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 0.92, 1.08, 1.0, 1.1, 0.9, 30.0]
    text = chart(values)
    drawn = {step: (y, value) for y, step, value in points(text)}
    assert drawn[12][1] == "30.00"
    spread = max(y for y, _ in list(drawn.values())[:-1]) - min(y for y, _ in list(drawn.values())[:-1])
    assert spread > 40, "the other values take a good part of the height"
    assert "outside the chart, at step 12;" in text
    assert "outside the chart" not in chart(values[:-1])


def test_a_long_run_is_thinned_to_means_that_keep_its_course():
    drawn = points(chart([float(step) for step in range(1, 10001)]))
    assert len(drawn) <= 400 and drawn[-1][1] == 10000
    heights = [y for y, _, _ in drawn]
    assert heights == sorted(heights, reverse=True)


def test_a_single_value_is_a_figure_and_no_chart():
    for values, written in (([0.0], "0"), ([5.0], "5.000")):
        root = xml.etree.ElementTree.fromstring(chart(values, unit="seconds"))
        assert not list(root.iter("svg")) and root.find("figcaption").text == "Loss"
        assert [node.text for node in root.iter("b")] == [written]
        assert "".join(root.itertext()) == f"Loss{written} at step 1seconds"
    both = [Series("a", [(3, 1.0)], "#4a9cd6"), Series("b", [], "#e09a34"), Series("c", [(4, 2.0)], "#2a9d7c")]
    root = xml.etree.ElementTree.fromstring(line_chart("Both", both, (0, 4)))
    assert [node.find("span").text for node in root.iter("div") if node.get("class") == "figure"] == [
        " a at step 3",
        " c at step 4",
    ]


def test_a_single_value_beside_a_line_is_a_larger_point():
    both = [Series("training", [(1, 3.0), (2, 2.0)], "#4a9cd6"), Series("held out", [(2, 2.5)], "#e09a34")]
    text = line_chart("Both", both, (0, 2))
    radii = re.findall(r' r="([\d.]+)"', text)
    assert radii == ["2.2", "2.2", "4"] and len(points(text)) == 3


def test_equal_values_are_drawn():
    for values in ([0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]):
        assert len(points(chart(values))) == len(values)
        assert len(points(chart(values, from_zero=True))) == len(values)
