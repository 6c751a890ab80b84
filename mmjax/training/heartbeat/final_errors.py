"""Errors that end a process: whether another process may be their cause, and their exit codes.

The heartbeat asks it when an error is about to end this process.
"""

import jax

from configs.common.errors import INTERRUPTED, USAGE_ERROR, UserError

_OWN_KINDS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")
"""Beginnings of the messages of jax's errors that no other process causes."""


def may_come_from_another(error: BaseException | None) -> bool:
    """Whether an error, or its cause, may come from a collective that the end of another process has broken."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(_OWN_KINDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def final_exit_code(error: BaseException) -> int:
    """Returns the exit code of a process that an error ends: as of commands (docs/reference/commands.md), else 1."""
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, OSError) and error.filename is not None:
        return USAGE_ERROR
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
