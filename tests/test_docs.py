"""The documents and `.ci/run`: every plan they show loads, and every file, link and command they name exists."""

import importlib.util
import pathlib
import re

import pytest

from mmjax import cli
from mmjax.training.config import TrainConfig, find_plan_file
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph

HOME = pathlib.Path(__file__).resolve().parents[1]
DOCUMENTS = [HOME / "README.md", *sorted((HOME / "docs").glob("*/*.md"))]
FOLDERS = ("benchmarks", "configs", "data", "docs", "mmjax", "pallas_kernels", "sharding", "tests")
PAGES = [HOME / "docs" / "reference" / f"{name}.md" for name in ("plans", "parallelism", "schedules")]
SHOWN = re.findall(r"```json\n(.*?)```", "".join(page.read_text() for page in PAGES), re.DOTALL)
PLANS = [text for text in SHOWN if '"units"' in text]
UNITS = [text for text in SHOWN if '"units"' not in text]


@pytest.fixture(scope="module")
def quickstart() -> TrainConfig:
    cli.parse_gin(("quickstart.gin",))
    return cli.configured(TrainConfig)


def test_the_documents_show_four_plans_and_four_units():
    assert (len(PLANS), len(UNITS)) == (4, 4)


@pytest.mark.parametrize("text", UNITS)
def test_a_unit_of_the_documents_is_one_of_a_plan(text):
    plan = Plan.from_json(f'{{"microbatches": 4, "units": [{text}]}}')
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", PLANS)
def test_a_plan_of_the_documents_holds_the_quickstart(quickstart, text):
    plan = Plan.from_json(text)
    resolve_plan(plan, module_graph(quickstart.model), 8, quickstart.data.rows)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_documents_show_the_quickstarts_plan(quickstart):
    assert Plan.load(find_plan_file(quickstart.plan)) in [Plan.from_json(text) for text in PLANS]


def test_the_plan_of_the_examples_holds_their_model():
    cli.parse_gin((str(HOME / "examples" / "shapes.gin"),))
    shapes = cli.configured(TrainConfig)
    resolve_plan(Plan.load(HOME / "examples" / "files" / "plan.json"), module_graph(shapes.model), 2, shapes.data.rows)


def links(text: str) -> set[str]:
    """Targets of relative links and pictures, without anchors."""
    return {target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target}


def paths(text: str) -> set[str]:
    """Files and folders of the repository that stand in code quotes; with a `*`, a pattern."""
    quoted = re.findall(r"`([\w./*-]+/[\w./*-]*)`", text)
    return {path for path in quoted if path.split("/")[0] in FOLDERS}


def commands(text: str) -> set[str]:
    """Modules of ours that are run."""
    return set(re.findall(r"python -m ((?:benchmarks|mmjax)\.\w+)", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_links_and_commands_of_a_document_exist(document):
    text = document.read_text()
    missing = {target for target in links(text) if not (document.parent / target).exists()}
    missing |= {path for path in paths(text) if not list(HOME.glob(path.rstrip("/")))}
    missing |= {module for module in commands(text) if importlib.util.find_spec(module) is None}
    assert missing == set()


def test_tests_that_continuous_integration_names_exist():
    named = re.findall(r"\btests/[\w./-]+", (HOME / ".ci" / "run").read_text())
    assert [path for path in named if not (HOME / path).exists()] == []


def test_links_paths_and_commands_are_found():
    text = "See [a](b.md#c), ![d](e.svg), `mmjax/*.py`, `data/`, `runs/x`; `python -m mmjax.train`; [f](https://g/h)."
    assert links(text) == {"b.md", "e.svg"}
    assert paths(text) == {"mmjax/*.py", "data/"}
    assert commands(text) == {"mmjax.train"}
