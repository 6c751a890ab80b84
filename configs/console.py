"""The console that everything here prints with."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that prints texts as they are: what a plan or a file names is no markup and no emoji.

    Args:
        **options: Those of `rich.console.Console`.
    """
    return Console(highlight=False, markup=False, emoji=False, **options)
