"""Every test belongs to one tier, and continuous integration and the documents know them all."""

import ast
import pathlib
import re

import pytest

from tests.tiers import TIERS, is_selected, tier_of, tier_of_file, tiers_of_file

HOME = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted((HOME / "tests").rglob("test_*.py"))
NAMED = re.compile(r"\bpytest\.mark\.(\w+)")
OTHERS = {"parametrize", "skipif", "usefixtures", "filterwarnings"}
"""Markers that say something else."""
PUBLISHED = re.compile(r'importorskip\(\s*"(torch|torchvision|transformers|diffusers|timm)\b')


def tiers_by_test(path: pathlib.Path) -> dict[str, set[str]]:
    """The tiers that each test of a file is given: by the file, or by its decorators."""
    file_tiers = {tier_of_file(path)} - {None}
    tests = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: file_tiers
        | {name for mark in node.decorator_list for name in NAMED.findall(ast.unparse(mark))} - OTHERS
        for node in tests
        if node.name.startswith("test_")
    }


def test_no_test_is_given_two_tiers_or_one_that_is_not_there():
    given = {f"{path.name}::{test}": tiers for path in FILES for test, tiers in tiers_by_test(path).items()}
    assert len(given) > 2000
    assert {tier for tiers in given.values() for tier in tiers} == set(TIERS)
    assert {test: tiers for test, tiers in given.items() if len(tiers) > 1} == {}


@pytest.mark.parametrize(
    ("folder", "tier"), [("aot", "aot"), ("processes", "processes"), ("faults", "processes"), ("pages", "pages")]
)
def test_folders_of_one_tier(folder, tier):
    files = sorted((HOME / "tests" / folder).rglob("test_*.py"))
    assert files and {tier_of_file(path) for path in files} == {tier}


def test_what_imports_published_models_is_of_the_tier_that_has_them():
    for path in FILES:
        text = path.read_text()
        if PUBLISHED.search(text):
            given = tiers_by_test(path)
            assert any("parity" in tiers for tiers in given.values()), path
            for function in ast.parse(text).body:
                if isinstance(function, ast.FunctionDef) and PUBLISHED.search(ast.unparse(function).replace("'", '"')):
                    assert given.get(function.name, {"parity"}) == {"parity"}, (path, function.name)


def test_continuous_integration_runs_every_tier_once():
    script = (HOME / ".ci" / "run").read_text()
    run = re.findall(r"-m pytest(?: -m (\w+))?$", script, re.MULTILINE)
    assert sorted(run) == sorted(["", *(set(TIERS) - {"aot"})])
    assert "-m pytest --check-types tests/" in script


def test_the_contributors_table_says_what_each_tier_proves():
    rows = re.findall(
        r"^\| `(\w+)` \| `python -m pytest -m (\w+)` \| (.*) \|$", (HOME / "CONTRIBUTING.md").read_text(), re.M
    )
    assert [(tier, tier, proves) for tier, proves in TIERS.items()] == rows


def test_a_file_of_a_tier_is_collected_only_where_the_tier_is_selected(pytestconfig):
    default = " and ".join(f"not {tier}" for tier in TIERS)
    assert default in pytestconfig.getini("addopts")
    assert not any(is_selected(tier, default) for tier in TIERS)
    assert is_selected("layouts", "layouts") and not is_selected("processes", "layouts")
    assert is_selected("aot", "")


MARK = "pytest.mark."  # this file names no tier


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("def test_y(): ...", {"default"}),
        (f"@{MARK}processes\n@{MARK}skipif(False)\ndef test_y(): ...", {"default", "processes"}),
        (f'@{MARK}parametrize("x", [pytest.param(1, marks={MARK}runs)])', {"default", "runs"}),
        (f'@{MARK}parametrize("x", first_in_default([1, 2]))', {"default", "layouts"}),
        (f"pytestmark = {MARK}pages", {"pages"}),
    ],
)
def test_the_tiers_of_a_file_are_those_that_it_names(tmp_path, text, tiers):
    (tmp_path / "test_x.py").write_text(text)
    assert tiers_of_file(tmp_path / "test_x.py") == tiers


class Item:
    """A test with markers."""

    nodeid = "tests/test_x.py::test_y"

    def __init__(self, path: pathlib.Path, *markers: str) -> None:
        self.path, self.markers = path, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_two_tiers_of_a_test_or_one_that_its_file_does_not_name_end_the_session(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text(f"@{MARK}layouts")
    assert tier_of(Item(path)) == "default" and tier_of(Item(path, "layouts", "slow")) == "layouts"
    with pytest.raises(pytest.UsageError, match=r"test_y has the markers of 2 tiers, layouts and aot: keep one"):
        tier_of(Item(path, "layouts", "aot"))
    with pytest.raises(pytest.UsageError, match=r"its file does not name: write pytest\.mark\.parity"):
        tier_of(Item(path, "parity"))
