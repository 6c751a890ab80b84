"""Exit codes that every command has (docs/commands.md); in the lowest import level, as training ends processes too."""

USAGE_ERROR = 2
"""After a `UserError`: a wrong flag, configuration or input."""

PROCESS_LOST = 75
"""After another process of the run died or froze; as `EX_TEMPFAIL` of sysexits.h, it may work when tried again."""

INTERRUPTED = 130
"""After Ctrl-C, as of a shell: 128 and the number of SIGINT."""

OUTPUT_CLOSED = 141
"""After what reads standard output has closed it, as of a shell: 128 and the number of SIGPIPE."""
