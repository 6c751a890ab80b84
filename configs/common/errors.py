"""Errors that a user can fix, and the exit codes of commands (docs/reference/commands.md), in the lowest import level.

All packages raise the errors, and training ends processes too.
"""

USAGE_ERROR = 2
"""After a `UserError`: a wrong flag, configuration or input."""

DEVICE_FAILED = 69
"""After a device of this process computed or stored wrongly; as `EX_UNAVAILABLE` of sysexits.h."""

PROCESS_LOST = 75
"""After another process of the run died or froze; as `EX_TEMPFAIL` of sysexits.h, it may work when tried again."""

STORAGE_FAILED = PROCESS_LOST
"""After storage or memory failed a checkpoint, a remote folder or a sample, which may work when tried again too."""

INTERRUPTED = 130
"""After Ctrl-C, as of a shell: 128 and the number of SIGINT."""

OUTPUT_CLOSED = 141
"""After the reader of standard output has closed it, as of a shell: 128 and the number of SIGPIPE."""


class UserError(Exception):
    """The user asked for something that cannot be done; the message names the culprit and the remedy.

    Commands print the message alone and exit with the code of its type. Any other exception is a bug and keeps its
    traceback.
    """

    exit_code = USAGE_ERROR
