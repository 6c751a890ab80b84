"""Running a benchmark as a command; some compile for devices that are not here."""

import os
from collections.abc import Callable
from typing import NoReturn

from mmjax import cli
from mmjax.cli.flags import Arguments


def run_benchmark(
    main: Callable[[Arguments], int | None],
    arguments: type[Arguments],
    *,
    name: str,
    summary: str,
    examples: tuple[str, ...],
) -> NoReturn:
    """Runs a benchmark by the flags of this process's command line, and exits.

    Args:
        main: The benchmark; returns its exit code, or None for 0.
        arguments: As in `cli.Command`, like `name`, `summary` and `examples`.
        name: Name of the module that `python -m NAME` runs.
        summary: A sentence that says what is measured.
        examples: Flags of command lines that show its use.
    """
    cli.run(
        cli.Command(
            name=name,
            summary=summary,
            examples=examples,
            arguments=arguments,
            prepare=lambda parsed: lambda: main(parsed),
        )
    )


def hide_devices() -> None:
    """Lets jax see the CPU only, for programs that are compiled but not run; jax must not have been imported yet."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # jax cannot read programs for devices that are not here
