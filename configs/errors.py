"""Errors that a user can fix, and the exit codes of commands (docs/commands.md), in the lowest import level.

All packages raise the errors, and training ends processes too.
"""

USAGE_ERROR = 2
"""After a `UserError`: a wrong flag, configuration or input."""

DEVICE_FAILED = 69
"""After a device of this process computed or stored wrongly; as `EX_UNAVAILABLE` of sysexits.h."""

PROCESS_LOST = 75
"""After another process of the run died or froze; as `EX_TEMPFAIL` of sysexits.h, it may work when tried again."""

STORAGE_FAILED = PROCESS_LOST
"""After a checkpoint could not be written, or a remote folder not be listed, which may work when tried again too."""

INTERRUPTED = 130
"""After Ctrl-C, as of a shell: 128 and the number of SIGINT."""

OUTPUT_CLOSED = 141
"""After what reads standard output has closed it, as of a shell: 128 and the number of SIGPIPE."""


_LONGEST_MESSAGE = 500


def one_line(message: str) -> str:
    """A message as it is shown: control characters are written as escapes, and what is longer is cut at its middle.

    What a message quotes may come from a file of unknown origin, and would otherwise act on the terminal or fill it.
    """
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in message)
    if len(text) <= _LONGEST_MESSAGE:
        return text
    half = (_LONGEST_MESSAGE - len(" ... ")) // 2
    return f"{text[:half]} ... {text[-half:]}"


class UserError(Exception):
    """The user asked for something that cannot be done; the message names the culprit and the remedy.

    Commands print the message alone and exit with the code of its type. Any other exception is a bug and keeps its
    traceback.
    """

    exit_code = USAGE_ERROR
