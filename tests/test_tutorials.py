"""The tutorials: their pictures and figures are those that their commands give."""

import importlib.util
import pathlib
import re

import gin
import pytest

import mmjax

HOME = pathlib.Path(__file__).resolve().parents[1]
TIMELINE = HOME / "docs" / "tutorials" / "read_a_timeline.md"
PLANS = re.findall(r"cat > (\w+\.json) <<'END'\n(.*?)END\n", TIMELINE.read_text(), re.DOTALL)


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """A folder with the plans that the tutorial on timelines writes."""
    for name, text in PLANS:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gin.clear_config()


def test_the_tutorial_on_timelines_writes_two_plans():
    assert [name for name, _ in PLANS] == ["lanes.json", "shorter.json"]


@pytest.mark.parametrize("name", [name for name, _ in PLANS])
def test_a_plan_of_the_tutorial_takes_the_step_that_it_says(name, plans):
    timeline = mmjax.simulate(name, "models/mllm_9b.gin", cluster="h100", rows=32)
    said = f"{timeline.step:.3f} s a step on 24 devices of h100, MFU {timeline.mfu:.1%} of all of them"
    assert f"\n{said}" in TIMELINE.read_text(), f"{name}: {said}"


def test_the_picture_of_the_tutorial_is_what_its_program_draws(plans):
    spec = importlib.util.spec_from_file_location("document_blocks", HOME / ".ci" / "document_blocks.py")
    assert spec and spec.loader
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    (program,) = (block for block in reader.read_blocks(TIMELINE, HOME) if block.language == "python")
    exec(program.text, {})
    drawn, shown = ((folder / "lanes.svg").read_text() for folder in (plans, TIMELINE.parent))
    assert drawn.count("xmlns") == drawn.count("background:white") == 1
    lanes = [text.partition("<g>")[2] for text in (drawn, shown)]  # behind the size, and the label for screen readers
    assert lanes[0] and lanes[0] == lanes[1], "lanes.svg is another picture: write it by the tutorial's program"
