"""The `rich` console with which commands and reports print, without interpretation of markup.

Every command makes its console here.
"""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that prints texts as they are: names from a plan or a file are neither markup nor emoji codes.

    Args:
        **options: Keyword arguments of `rich.console.Console`.
    """
    return Console(highlight=False, markup=False, emoji=False, **options)
