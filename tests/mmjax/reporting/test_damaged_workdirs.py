"""The page of a workdir whose files are damaged or hostile: written, or refused in one line that names the file."""

import base64
import json
import os
import random
import re
import shutil

import pytest

from configs.common.errors import UserError
from mmjax.reporting.run_folder import open_run
from mmjax.reporting.run_page import run_fragment, run_page
from mmjax.training.metrics.step_timeline_file import write_step_timeline
from tests.mmjax.reporting.test_damaged_files import VALUES, other_bytes, other_value
from tests.mmjax.reporting.workdirs import finished_run, write_start
from tests.sharding.html.documents import parsed_page, words
from tests.sharding.steps import uneven_timeline

SPOILED = 12
"""Spoiled copies of each file."""

FILES = (
    "metrics.jsonl",
    "starts.jsonl",
    "summary.json",
    "plan.json",
    "timeline.json",
    "unreadable.jsonl",
    "operative.gin",
    "samples/step_000012.jsonl",
    "samples/not_taken.txt",
    "samples/input_0_0.png",
)
SECRET = "the other user's private key"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = finished_run(tmp_path_factory.mktemp("run") / "run")
    write_step_timeline(folder, 5, uneven_timeline())
    (folder / "operative.gin").write_text("config.TrainConfig.steps = 12\n")
    (folder / "samples" / "not_taken.txt").write_text("several processes\n")
    return folder


@pytest.fixture
def workdir(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def page_or_refusal(workdir) -> str:
    """The page, well-formed; or the refusal, of one line."""
    try:
        run = open_run(workdir)
        page = run_page(run, "no prediction")
        run_fragment(run)
    except UserError as error:
        assert len(str(error).splitlines()) == 1 and str(workdir) in str(error), error
        return str(error)
    assert page.startswith("<!doctype html>")
    return page


@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_on_the_page_or_refused_in_one_line(workdir, name):
    chance, path = random.Random(name), workdir / name
    content = path.read_bytes()
    refused = 0
    for number in range(SPOILED):
        spoiled = other_bytes(content, chance)
        if number % 2 and ".json" in name:
            documents = [json.loads(line) for line in (content.splitlines() if name.endswith("l") else [content])]
            at = chance.randrange(len(documents))
            documents[at] = other_value(documents[at], chance)
            spoiled = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
        path.write_bytes(spoiled)
        refused += not page_or_refusal(workdir).startswith("<!doctype")
    assert refused < SPOILED
    path.unlink()
    assert page_or_refusal(workdir).startswith("<!doctype")


RECORDS = {
    "starts.jsonl": {
        **{"time": "2026-11-20T10:00:00", "step": 0, "steps": 9, "processes": 1, "remark": "", "devices": "1 x cpu"},
        **{"versions": {"jax": "0.12.0"}, "passed_over": ["step 3: torn"]},
    },
    "summary.json": {
        **{"steps": 9, "stopped_by": "", "wall_seconds": 1.5, "remark": "", "devices": "1 x cpu"},
        **{"data": {"samples": {"vqa": 3}}},
    },
    "unreadable.jsonl": {"source": "vqa", "key": "image 3", "reason": "cut off"},
    "samples/step_000012.jsonl": {
        **{"kind": "answer", "prompt": "why?", "images": ["input_0_0.png"], "expected": "a", "answer": "b"},
        **{"ended": True},
    },
    "samples/step_000013.jsonl": {
        **{"kind": "image", "prompt": "a star", "images": [], "expected": "target_0.png", "image": "input_0_0.png"},
    },
    "metrics.jsonl": {"step": 3, "loss/backbone": 2.5, "accuracy": 0.5, "seconds/wall": 0.1, "tokens_per_second": 1.0},
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_key_of_a_record_may_have_any_value_or_be_missing(tmp_path, name):
    record, path = RECORDS[name], tmp_path / name
    (tmp_path / "samples").mkdir()
    write_start(tmp_path, 0)
    path.write_text(json.dumps(record) + "\n")
    assert page_or_refusal(tmp_path).startswith("<!doctype")
    refused = set()
    for key in record:
        others = [{key: value} for value in (*VALUES, 1e308, 5e-324, -1e-300, ["../x"], {"a": "b"}, "²")]
        for changed in [*({**record, **other} for other in others), {k: v for k, v in record.items() if k != key}]:
            path.write_text(json.dumps(changed) + "\n")
            if not page_or_refusal(tmp_path).startswith("<!doctype"):
                refused.add(key)
    assert refused == set(record) if name != "metrics.jsonl" else "step" in refused


@pytest.mark.parametrize("values", [(0.0, 5e-324), (5e-324,), (1e99, -1e99), (1e15, 1e15 + 0.125), (1e-300, 2e-300)])
def test_extreme_metrics_are_drawn(tmp_path, values):
    lines = [json.dumps({"step": step, "loss/backbone": value, "mine/x": value}) for step, value in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = page_or_refusal(tmp_path)
    parsed_page(page)
    if len(values) == 1:
        assert page.count("at step 0") == 2 and 'class="point"' not in page
    else:
        assert page.count('class="point"') == 2 * len(values)


@pytest.mark.parametrize("make", ["dots", "absolute", "link", "folder of samples", "picture that is none"])
def test_no_file_from_outside_of_the_workdir_gets_into_the_page(workdir, make):
    outside = workdir.parent / "private"
    outside.mkdir()
    (outside / "id_rsa").write_bytes(b"\x89PNG\r\n\x1a\n" + SECRET.encode())
    samples = workdir / "samples"
    lines = samples / "step_000012.jsonl"
    name = {"dots": "../../private/id_rsa", "absolute": str(outside / "id_rsa")}.get(make, "id_rsa")
    text = lines.read_text().replace("input_0_0.png", name)
    if make == "folder of samples":
        shutil.move(samples, outside / "samples")
        (outside / "id_rsa").rename(outside / "samples" / "id_rsa")
        samples.symlink_to(outside / "samples")
    elif make == "link":
        (samples / "id_rsa").symlink_to(outside / "id_rsa")
    elif make == "picture that is none":
        (samples / "id_rsa").write_text(SECRET)
    lines.write_text(text)
    page = page_or_refusal(workdir)
    shown = [base64.b64decode(encoded) for encoded in re.findall(r"base64,([^\"]+)", page)]
    assert not any(SECRET.encode() in picture for picture in shown) and SECRET not in page
    assert "no name of a file in" in page or "leads out of the workdir" in page or "is no PNG file" in page


@pytest.mark.parametrize("name", ["operative.gin", "samples/not_taken.txt"])
def test_a_link_to_a_text_outside_is_refused(workdir, name):
    outside = workdir.parent / "private"
    outside.write_text(SECRET)
    for path in (workdir / "samples").glob("step_*.jsonl"):
        path.unlink()
    (workdir / name).unlink()
    (workdir / name).symlink_to(outside)
    assert "leads out of the workdir" in page_or_refusal(workdir)


def test_folders_pipes_and_links_in_a_circle_in_the_place_of_files_are_refused_or_left_out(workdir):
    for name in FILES:
        path = workdir / name
        content = path.read_bytes()
        for put in (path.mkdir, lambda path=path: os.mkfifo(path), lambda path=path: path.symlink_to(path.name)):
            path.unlink()
            put()
            assert page_or_refusal(workdir)
            path.rmdir() if path.is_dir() else path.unlink()
            path.write_bytes(content)


def test_names_of_checkpoints_and_samples_that_are_no_steps(workdir):
    for name in ("²", "٣", "9" * 200, "-1"):
        (workdir / "checkpoints" / name).mkdir()
    assert [checkpoint.step for checkpoint in open_run(workdir).checkpoints] == [6, 12]
    (workdir / "samples" / "step_x.jsonl").write_text("")
    assert "step_x.jsonl is no file of samples" in page_or_refusal(workdir)


def test_secrets_of_the_configuration_are_hidden_on_the_page_alone(workdir):
    text = f"HF = {SECRET!r}\ntracker.Tracker.api_key = \\\n    {SECRET!r}\ndata.Rows.hf_token = %HF\nsteps = 3\n"
    (workdir / "operative.gin").write_text(text)
    page = page_or_refusal(workdir)
    assert SECRET not in words(parsed_page(page)) and "(hidden)" in page and "steps = 3" in page
    assert open_run(workdir).config_text == text
