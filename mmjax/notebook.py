"""The HTML by which notebooks show timelines, runs, dry runs and descriptions of data.

A page imports the class that it shows, so the class cannot import its page. `import mmjax` registers the HTML with
IPython instead, by the names of the classes: nothing is imported before one of them is shown.
"""

import sys
from typing import Any


def register_html() -> None:
    """Registers the HTML of these classes with IPython; does nothing outside a notebook."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    html.for_type_by_name("data.report.description", "DatasetDescription", _description_html)
    html.for_type_by_name("mmjax.reporting.run_folder", "Run", _run_html)
    html.for_type_by_name("mmjax.training.dry_run.dry_run", "DryRun", _dry_run_html)
    html.for_type_by_name("sharding.simulation.timeline", "Timeline", _timeline_html)


def _description_html(description: Any) -> str:
    from data.report.html_page import html_fragment

    return html_fragment(description)


def _run_html(run: Any) -> str:
    from mmjax.reporting.run_page import run_fragment

    return run_fragment(run)


def _dry_run_html(run: Any) -> str:
    from mmjax.reporting.dry_run_page import dry_run_fragment

    return dry_run_fragment(run)


def _timeline_html(timeline: Any) -> str:
    from sharding.simulation.pages.html_page import html_fragment

    return html_fragment(timeline)
