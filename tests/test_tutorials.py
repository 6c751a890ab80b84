"""The tutorials: their pictures and figures are those that their commands give."""

import importlib.util
import pathlib
import re

import gin
import pytest

import mmjax

HOME = pathlib.Path(__file__).resolve().parents[1]
TIMELINE = HOME / "docs" / "tutorials" / "read_a_timeline.md"
ONE_PLAN = TIMELINE.with_name("one_plan.md")
SHAPES = "examples/shapes.gin"


def written_plans(tutorial: pathlib.Path) -> list[tuple[str, str]]:
    """The plans that the commands of a tutorial write: names of files and texts."""
    return re.findall(r"cat > (\w+\.json) <<'END'\n(.*?)END\n", tutorial.read_text(), re.DOTALL)


PLANS = written_plans(TIMELINE)


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """A folder with the plans that the tutorials write, and the examples."""
    for name, text in [*PLANS, *written_plans(ONE_PLAN)]:
        (tmp_path / name).write_text(text)
    (tmp_path / "examples").symlink_to(HOME / "examples")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    gin.clear_config()


def test_the_tutorial_on_timelines_writes_two_plans():
    assert [name for name, _ in PLANS] == ["lanes.json", "shorter.json"]


@pytest.mark.parametrize("name", [name for name, _ in PLANS])
def test_a_plan_of_the_tutorial_takes_the_step_that_it_says(name, plans):
    timeline = mmjax.simulate(name, "models/mllm_9b.gin", cluster="h100", rows=32)
    takes = f"A simulated step takes {timeline.step:.3f} s (...)"
    said = f"{takes} on 24 devices of h100, MFU {timeline.mfu:.1%} of all of them (...)"
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


def test_the_plan_that_the_tutorial_asks_for_takes_the_step_that_it_says(plans):
    (planned,) = mmjax.plan(SHAPES, cluster="cpu", devices=4, policy="disaggregated").results
    assert planned.timeline is not None
    text = ONE_PLAN.read_text()
    assert f"disaggregated  {planned.timeline.step * 1e3:.2f} ms" in text
    assert says_of_all_lanes(planned.timeline) in text


def test_the_plan_that_the_tutorial_edits_takes_the_step_that_it_says(plans):
    assert says_of_all_lanes(mmjax.simulate("shared.json", SHAPES, cluster="cpu")) in ONE_PLAN.read_text()


def says_of_all_lanes(timeline) -> str:
    """The sentence of `mmjax simulate` on a step on four devices, as far as the tutorial has it."""
    return f"A simulated step takes {timeline.step:.3f} s on 4 devices of cpu, MFU {timeline.mfu:.1%} of all of them"
