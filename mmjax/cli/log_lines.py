"""Log messages in the form of a command's other messages: `warning: …`, `note: …`, `error: …`.

`command.py` sets it up before a command's work.
"""

import logging

_WORDS = {logging.INFO: "note", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "error"}


class _LineFormatter(logging.Formatter):
    """A line that begins with the severity, without the name of the logger."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name of logging
        return f"{_WORDS.get(record.levelno, record.levelname.lower())}: {record.message}"


def show_logs_as_lines() -> None:
    """Writes the log messages of this process, including mmjax's own notes, to standard error in that form.

    A handler must be there before the configuration is read: gin logs to the root logger, and the first such message
    sets up logging's own form, `WARNING:module:…`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("mmjax").setLevel(logging.INFO)
