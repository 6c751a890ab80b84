"""Colours of pages and notebooks. Each can be told from a light and from a dark background."""

BLUE, ORANGE, GREEN, PINK, GREY, VIOLET = "#4a9cd6", "#e09a34", "#2a9d7c", "#c66f9e", "#858b94", "#a48cc4"
YELLOW = "#d9cf3f"
SERIES = (BLUE, ORANGE, GREEN, PINK, VIOLET, GREY)
"""For series that have no colour of their own; after Okabe and Ito, made for colour blindness."""

EMPTY = "#8884"
"""Where nothing happens: idle time, the ground of a bar."""


def series_colour(number: int) -> str:
    """The colour of a series by its number; colours repeat after six."""
    return SERIES[number % len(SERIES)]
