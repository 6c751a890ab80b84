"""The `rich` console with which commands and reports print, without interpretation of markup."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that prints texts as they are: what a plan or a file names is no markup and no emoji.

    Args:
        **options: Keyword arguments of `rich.console.Console`.
    """
    return Console(highlight=False, markup=False, emoji=False, **options)
