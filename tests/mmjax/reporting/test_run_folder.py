"""A run's folder as an object, in every state that a run can leave it in."""

import pytest

from configs.common.errors import UserError
from mmjax.reporting.run_folder import open_run
from mmjax.reporting.run_page import run_fragment
from tests.mmjax.reporting.workdirs import (
    PLAN,
    VERSIONS,
    finished_run,
    scalars,
    write_start,
    write_steps,
    write_summary,
)
from tests.sharding.html.documents import parsed_fragment, words


def test_all_of_a_run_is_read_back(tmp_path):
    run = open_run(str(finished_run(tmp_path / "run")))
    assert run.name == "run" and run.plan == PLAN
    assert [line["step"] for line in run.metrics] == list(range(1, 13))
    assert run.metrics[6] == {"step": 7, **scalars(7)}
    assert run.metrics[11] == {"step": 12, **scalars(12), "accuracy": 0.75}
    assert run.summary["steps"] == 12
    assert [start["step"] for start in run.starts] == [0, 6, 10] and run.starts[0]["versions"] == VERSIONS
    assert [(answer["step"], answer["kind"]) for answer in run.answers] == [
        (8, "answer"),
        (8, "image"),
        (12, "answer"),
        (12, "image"),
    ]
    assert run.sample_file(run.answers[1]["image"]).is_file()
    assert run.refusals == [{"cause": "unreadable", "source": "vqa", "key": "image <3>", "reason": "cut off"}]
    assert [(checkpoint.step, checkpoint.size) for checkpoint in run.checkpoints] == [(6, 6000), (12, 12000)]
    assert run.config_text == ""


def test_metrics_are_a_frame_with_a_row_for_each_step(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    write_steps(tmp_path, range(1, 4))
    frame = open_run(tmp_path).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["step"].tolist() == [1, 2, 3]
    assert frame["loss/backbone"].tolist() == [4.0, 2.0, 4.0 / 3]
    assert frame["accuracy"].isna().tolist() == [True, True, False]


def test_the_summary_of_an_earlier_start_is_not_that_of_a_run_that_goes_on(tmp_path):
    write_start(tmp_path, 0)
    write_summary(tmp_path, 4, "SIGTERM")
    assert open_run(tmp_path).summary["stopped_by"] == "SIGTERM"
    write_start(tmp_path, 4, time="2100-01-01T00:00:00+00:00")
    assert open_run(tmp_path).summary == {}


def test_a_folder_that_no_run_wrote_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is no run's workdir: it has none of metrics\.jsonl"):
        open_run(tmp_path)
    write_start(tmp_path, 0)
    with (tmp_path / "starts.jsonl").open("a") as lines:
        lines.write("[\n")
    with pytest.raises(UserError, match=r"starts\.jsonl:2 is not JSON"):
        _ = open_run(tmp_path).starts


def test_a_notebook_shows_status_and_losses(tmp_path):
    fragment = parsed_fragment(run_fragment(open_run(finished_run(tmp_path / "run"))))
    assert "Run run" in words(fragment) and "Finished after 12 steps" in words(fragment)
    assert [words(node) for node in fragment.iter("figcaption")] == [
        "Loss of backbone",
        "Loss of generator",
        "Held-out accuracy",
    ]
