"""Proposals for misspelt names, in error messages about flags, files, macros, parameters and policies."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the text that proposes the known name nearest to a misspelt one; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
