"""mmjax.notebook: what IPython shows of timelines, runs and descriptions of data."""

import sys
import types

import pytest

import mmjax
from data.report.html_page import html_fragment as description_fragment
from mmjax.notebook import register_html
from mmjax.reporting.run_folder import open_run
from mmjax.reporting.run_page import run_fragment
from sharding.simulation.pages.html_page import html_fragment as timeline_fragment
from tests.mmjax.reporting.workdirs import finished_run


@pytest.fixture
def show(monkeypatch):
    """What a shell shows of a value as HTML; None where it shows text alone."""
    ipython = pytest.importorskip("IPython")
    formatters = pytest.importorskip("IPython.core.formatters")
    shell = types.SimpleNamespace(display_formatter=formatters.DisplayFormatter())
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell)
    register_html()
    return lambda value: shell.display_formatter.format(value)[0].get("text/html")


def test_notebooks_show_a_timeline_a_run_and_a_description_as_html(show, tmp_path):
    plan = mmjax.plan("models/llava_1_6_7b.gin", cluster="h100", devices=8, policy="disaggregated", rows=16)
    run = open_run(finished_run(tmp_path / "run"))
    description = mmjax.describe_data(mmjax.load("tiny.gin"), samples=20, examples=False)
    assert show(plan.timeline) == timeline_fragment(plan.timeline)
    assert show(run) == run_fragment(run)
    assert show(description) == description_fragment(description)
    assert show(run.workdir) is None


def test_programs_without_a_notebook_are_left_alone(monkeypatch):
    ipython = pytest.importorskip("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)
    register_html()
    monkeypatch.delitem(sys.modules, "IPython")
    register_html()
    assert "IPython" not in sys.modules
