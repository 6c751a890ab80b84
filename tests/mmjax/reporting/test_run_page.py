"""The page of finished, running, killed and empty runs: well-formed, self-contained, each step drawn once."""

import base64
import collections
import dataclasses
import json
import re

from mmjax.reporting.predicted_step import PredictedTimeline
from mmjax.reporting.run_folder import open_run
from mmjax.reporting.run_page import run_page, write_run_page
from mmjax.training.metrics.step_timeline_file import write_step_timeline
from sharding.html.numbers import percent, seconds
from sharding.simulation.pages.html_page import html_page
from sharding.simulation.pages.html_tables import range_in_figures
from tests.mmjax.reporting.workdirs import finished_run, write_start, write_steps, write_summary
from tests.sharding.html.documents import parsed_page, tables, words
from tests.sharding.steps import uneven_timeline


def drawn_points(root) -> dict[str, list[tuple[str, int, str]]]:
    """By title of a chart: series, step and value of its points."""
    return {
        words(figure.find("figcaption")): [
            (match[1], int(match[2]), match[3])
            for point in figure.iter()
            if point.get("class") == "point"
            for match in [re.fullmatch(r"(.*), step (\d+): (.*)", point.find("title").text)]
        ]
        for figure in root.iter("figure")
    }


def sections(root) -> dict[str, str]:
    """The words of each section by its heading."""
    return {words(node.find("h2")): words(node) for node in root.iter("section")}


def test_each_step_of_a_run_that_was_resumed_twice_is_drawn_once(tmp_path):
    root = parsed_page(run_page(open_run(finished_run(tmp_path / "run")), "no model"))
    charts = drawn_points(root)
    steps = list(range(1, 13))
    assert [(step, value) for _, step, value in charts["Loss of backbone"]] == [
        (step, f"{4 / step:#.4g}") for step in steps
    ]
    assert [step for _, step, _ in charts["Held-out accuracy"]] == [10, 12]  # that of step 8 was after the checkpoint
    for title, series in {
        "Loss of generator": ["training"],
        "Learning rate": ["learning rate"],
        "Gradient norm before clipping": ["gradient norm before clipping"],
        "Throughput": ["throughput"],
        "Time of a step by part, as the host measures it": ["wall", "dispatch"],
        "Padding of rows by module": ["backbone"],
        "mine": ["score"],
    }.items():
        steps_by_series = collections.defaultdict(list)
        for name, step, _ in charts.pop(title):
            steps_by_series[name].append(step)
        assert steps_by_series == dict.fromkeys(series, steps), title
    assert set(charts) == {"Loss of backbone", "Held-out accuracy"}
    marks = [words(node) for node in root.iter("g") if node.get("class") == "mark"]
    assert {mark.partition(",")[0] for mark in marks} == {"resumed at step 6", "resumed at step 10"}


def test_learning_rates_of_parts_stand_beside_that_of_all_other_parts(tmp_path):
    workdir = finished_run(tmp_path / "run")
    with (workdir / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 12, "learning_rate/vision": 1e-5}) + "\n")
    points = drawn_points(parsed_page(run_page(open_run(workdir), "")))["Learning rate"]
    assert {name for name, _, _ in points} == {"all other parts", "vision"}


def test_held_out_loss_is_drawn_beside_the_training_loss(tmp_path):
    workdir = finished_run(tmp_path / "run")
    for step, loss in ((8, 0.75), (12, 0.625)):
        with (workdir / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({"step": step, "held_out_loss/backbone": loss}) + "\n")
    root = parsed_page(run_page(open_run(workdir), ""))
    points = drawn_points(root)
    title = "Loss of backbone, in training and on held-out questions"
    assert [point for point in points[title] if point[0] == "held out"] == [
        ("held out", 8, "0.7500"),
        ("held out", 12, "0.6250"),
    ]
    assert [step for name, step, _ in points[title] if name == "training"] == list(range(1, 13))
    assert "Loss of generator" in points and not any("held_out_loss" in chart_title for chart_title in points)
    figures = [words(node) for node in root.iter("div") if node.get("class") == "figure"]
    assert "0.6250 held-out loss of backbone" in figures and "0.3333 training loss of backbone" in figures


def test_curves_of_one_point_are_figures(tmp_path):
    write_start(tmp_path, 0)
    write_steps(tmp_path, range(1, 2))
    root = parsed_page(run_page(open_run(tmp_path), ""))
    charts = {words(figure.find("figcaption")): figure for figure in root.iter("figure")}
    assert not any(list(figure.iter("svg")) for figure in charts.values())
    assert words(charts["Loss of backbone"]) == "Loss of backbone4.000 at step 1"
    parts = [words(node) for node in charts["Time of a step by part, as the host measures it"].iter("span")]
    assert parts == ["wall at step 1", "dispatch at step 1"]


def test_the_page_tells_how_the_run_stands_and_what_it_left(tmp_path):
    run = open_run(finished_run(tmp_path / "run"))
    root = parsed_page(run_page(run, "there is no profile"))
    told = sections(root)
    assert "Finished after 12 steps." in words(root)
    assert "The step is not simulated: there is no profile." in told["A step, simulated and measured"]
    assert "no step of this run is recorded" in told["A step, simulated and measured"]
    assert "2 microbatches, schedule 1f1b." in told["Plan"]
    assert "Refused samples: 1 unreadable." in told["Data"] and "image <3>" in told["Data"]
    assert "jax 0.12.0" in told["Starts, devices and versions"]
    by_heading = {tuple(rows[0]): rows[1:] for rows in tables(root)}
    assert [row[0] for row in by_heading[("step", "finished", "size")]] == ["6", "12"]
    assert [row[1] for row in by_heading[("start", "at step", "devices", "processes", "remark")]] == ["0", "6", "10"]
    times = [row[0] for row in by_heading[("start", "at step", "devices", "processes", "remark")]]
    times += [row[1] for row in by_heading[("step", "finished", "size")]]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", time) for time in times), times
    assert "30.50 s time of the last run" in [words(node) for node in root.iter("div") if node.get("class") == "figure"]
    assert [row[0] for row in by_heading[tuple(run.plan.table()[0])]] == ["vision", "backbone"]
    assert by_heading[("kind", "samples")] == [["vqa", "957"], ["text", "43"]]


def test_answers_and_images_stand_beside_what_the_data_set_has(tmp_path):
    run = open_run(finished_run(tmp_path / "run"))
    root = parsed_page(run_page(run, ""))
    by_heading = {tuple(rows[0]): rows[1:] for rows in tables(root)}
    answers = by_heading[("", "question", "in the data set", "step 8", "step 12")]
    assert answers == [["", "what is <it>?", "a circle", "nothing", "a circle"]]
    assert [words(node) for node in root.iter("b") if words(node) == "a circle"], "right answers are bold"
    shown = {node.get("alt"): node.get("src") for node in root.iter("img")}
    assert set(shown) == {"input_0_0.png", "target_0.png", "step_000008_0.png", "step_000012_0.png"}
    data = base64.b64decode(shown["step_000008_0.png"].removeprefix("data:image/png;base64,"))
    assert data == run.sample_file("step_000008_0.png").read_bytes()


def test_a_run_that_goes_on_or_was_killed_has_a_page(tmp_path):
    write_start(tmp_path, 0)
    write_steps(tmp_path, range(1, 4))
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 4, "loss/ba')
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    (tmp_path / "checkpoints" / "3-1.unfinished").mkdir()
    root = parsed_page(run_page(open_run(tmp_path), ""))
    assert "Going on, or killed: no end is recorded. Reported up to step 3 of 60; the newest checkpoint is" in words(
        root
    )
    assert [step for _, step, _ in drawn_points(root)["Throughput"]] == [1, 2, 3]
    write_summary(tmp_path, 3, "Ctrl-C")
    assert "Stopped by Ctrl-C after step 3 of 60, which is saved." in words(
        parsed_page(run_page(open_run(tmp_path), ""))
    )


def test_a_run_that_has_only_begun_has_a_page_that_says_what_is_missing(tmp_path):
    write_start(tmp_path, 0)
    told = sections(parsed_page(run_page(open_run(tmp_path), "")))
    assert "Nothing is reported yet." in told["Training"]
    assert "no plan.json" in told["Plan"] and "There are no checkpoints." in told["Checkpoints"]
    assert "No step is reported yet." in told["A step, simulated and measured"]
    assert "sample_questions" in told["Sample answers over time"]
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "not_taken.txt").write_text("the model has 9,000,000,000 parameters\n")
    told = sections(parsed_page(run_page(open_run(tmp_path), "")))
    assert "There are none: the model has 9,000,000,000 parameters." in told["Sample answers over time"]


def test_both_timelines_of_a_step_are_drawn_and_compared(tmp_path):
    timeline = uneven_timeline()
    predicted = PredictedTimeline(timeline, "the analytic costs")
    write_start(tmp_path, 0)
    for factor, scale in ((1.5, "Both are drawn on one scale."), (10.0, "Each is drawn on a scale of its own.")):
        slower = tuple(dataclasses.replace(s, start=factor * s.start, end=factor * s.end) for s in timeline.spans)
        write_step_timeline(tmp_path, 5, dataclasses.replace(timeline, spans=slower, costs=None))
        root = parsed_page(run_page(open_run(tmp_path), predicted))
        told = sections(root)["A step, simulated and measured"]
        assert "Simulated with the analytic costs" in told and "Measured, step 5" in told and "slow each other" in told
        assert f"{factor:#.3g} times the simulated" in told and scale in told
        drawn = [node for node in root.iter("svg") if (node.get("aria-label") or "").startswith("Timeline of a ")]
        assert len(drawn) == 2
        rows = {row[0]: row[1] for rows in tables(root) if rows[0][0] == "unit" for row in rows[1:]}
        shares = {unit: percent(busy / timeline.step) for unit, busy in timeline.busy_by_unit.items()}
        assert rows == {**shares, "all devices": percent(timeline.busy / timeline.step)}


def test_a_range_stands_beside_a_simulated_step_that_has_one(tmp_path):
    timeline = uneven_timeline()
    write_start(tmp_path, 0)
    write_step_timeline(tmp_path, 5, dataclasses.replace(timeline, costs=None))
    ranged = dataclasses.replace(timeline, error_families=("pipeline",))
    words_of_range = range_in_figures(ranged.step_range)
    for predicted, is_said in ((ranged, True), (timeline, False)):
        told = sections(parsed_page(run_page(open_run(tmp_path), PredictedTimeline(predicted, "costs"))))
        compared = f"times the simulated {seconds(timeline.step)} ({words_of_range})."
        assert (compared in told["A step, simulated and measured"]) == is_said
        figure = f"{words_of_range}</b><span> its range by published runs"
        assert (figure in html_page(predicted, "title")) == is_said


def test_a_damaged_timeline_is_named(tmp_path):
    write_start(tmp_path, 0)
    (tmp_path / "timeline.json").write_text('{"step": 5, "sta')
    assert "timeline.json is not JSON" in words(parsed_page(run_page(open_run(tmp_path), "")))


def test_values_that_are_not_finite_are_left_out_of_charts(tmp_path):
    write_steps(tmp_path, range(1, 4))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"loss/backbone": None})
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    root = parsed_page(run_page(open_run(tmp_path), ""))
    assert [step for _, step, _ in drawn_points(root)["Loss of backbone"]] == [1, 3]


def test_the_file_is_replaced_at_once(tmp_path):
    write_steps(tmp_path, range(1, 4))
    path = tmp_path / "report.html"
    path.write_text("an older page")
    write_run_page(open_run(tmp_path), "", path)
    parsed_page(path.read_text())
    assert not list(tmp_path.glob("*.tmp"))
