"""Shortening of long values wherever text is shown: in errors, logs, lists of refused samples and on pages."""

SHOWN_CHARACTERS = 500
"""Characters of a line of an error, and of a value in a file that lists values."""


def shortened(text: str, characters: int = SHOWN_CHARACTERS) -> str:
    """A text of at most so many characters: the beginning and the end of a longer one, and its length."""
    if len(text) <= characters:
        return text
    left_out = f" ... ({len(text)} characters) ... "
    kept = characters - len(left_out)
    end = max(kept // 3, 0)
    return f"{text[: kept - end]}{left_out}{text[len(text) - end :]}" if kept > 0 else f"{text[: characters - 3]}..."


def shortened_lines(text: str) -> str:
    """A text whose lines are shortened each."""
    return "\n".join(map(shortened, text.split("\n")))


def one_line(text: str) -> str:
    """A text as a terminal shows it on one line: shortened, its control characters written as escapes.

    A quoted text may come from a file of unknown origin, whose control sequences would act on the terminal.
    """
    return shortened("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text))
