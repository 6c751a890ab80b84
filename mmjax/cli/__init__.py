"""What the commands share: the order of start-up, flags, gin configuration, and errors without tracebacks.

A command imports this package first and everything else of mmjax inside its main function, so that nothing is imported
before the checks here have passed:

    from mmjax import cli

    def main() -> int:
        cli.parse_gin("quickstart.gin")
        from mmjax.training.config import TrainConfig
        config = cli.configured(TrainConfig)
        ...
        return 0

    if __name__ == "__main__":
        cli.run(main)
"""

from mmjax.cli import import_guard

import_guard.refuse_shadowed_packages()  # before the imports below can take another package for one of ours

from configs.errors import UserError  # noqa: E402
from mmjax.cli.command import USAGE_ERROR, parse_flags, run  # noqa: E402
from mmjax.cli.gin_config import (  # noqa: E402
    OPERATIVE_CONFIG,
    configured,
    gin_files_given,
    is_bound,
    parse_gin,
    parse_operative_config,
    write_operative_config,
)

__all__ = [
    "OPERATIVE_CONFIG",
    "USAGE_ERROR",
    "UserError",
    "configured",
    "gin_files_given",
    "is_bound",
    "parse_flags",
    "parse_gin",
    "parse_operative_config",
    "run",
    "write_operative_config",
]
