"""What is logged while a command runs, as its user reads it."""

import io
import logging

import pytest

from mmjax.cli.gin_config import CONFIGS, parse_gin
from mmjax.cli.log_lines import show_logs_as_lines


@pytest.fixture
def start_logging(monkeypatch):
    """Sets up a command's logging as in a process that has none, and returns what it writes to standard error."""
    logger = logging.getLogger("mmjax")
    level = logger.level

    def start() -> io.StringIO:
        shown = io.StringIO()
        monkeypatch.setattr("sys.stderr", shown)
        monkeypatch.setattr(logging.root, "handlers", [])  # in the test itself: pytest adds its own before it
        show_logs_as_lines()
        return shown

    yield start
    logger.setLevel(level)


def test_logs_start_with_how_grave_they_are(start_logging):
    shown = start_logging()
    logging.getLogger("mmjax.any").info("nothing to do: %s", "no questions")
    logging.getLogger("mmjax.any").warning("a remark")
    logging.getLogger("data.any").error("a fault")
    logging.getLogger("another_library").info("details")
    assert shown.getvalue().splitlines() == ["note: nothing to do: no questions", "warning: a remark", "error: a fault"]


def test_a_configuration_that_includes_others_does_not_change_the_form(start_logging):
    shown = start_logging()
    parse_gin((str(CONFIGS / "llava.gin"),))  # gin looks for the included file in several folders, and logs that
    logging.getLogger("mmjax.any").warning("a remark")
    assert shown.getvalue() == "warning: a remark\n"
