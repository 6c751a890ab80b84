"""Pictures of pages beside the stored ones. `python -m tests.pages.pictures` compares, with `--renew` stores anew.

Both are reduced to a quarter of their width, and compared by blocks of 16 x 16 pixels: how letters are smoothed makes
no difference, and a section or a drawing that is missing, moved or of another colour does. Thin lines are not judged.
"""

import argparse
import io
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from tests.pages.browser import Browser, missing, started
from tests.pages.samples import PAGES

STORED = pathlib.Path(__file__).with_name("stored")
VIEWS = {"light": (1200, False), "dark": (1200, True), "phone": (390, False), "phone_dark": (390, True)}
"""By name, the width of the window and whether the system is dark."""

REDUCTION, BLOCK = 4, 4  # pixels of the page a stored one, and stored ones a block that is compared
LARGEST_DIFFERENCE = 20
"""Levels of 255 by which the mean colour of a block may differ."""

MOST_DIFFERENT = 0.01
"""Share of the blocks that may differ by more."""

_TALLER = 8  # pixels by which a page may be taller or shorter
_COLOURS = 96  # of a stored picture

Picture = UInt8[np.ndarray, "h w 3"]


def reduced(picture: Picture) -> Picture:
    """A quarter of the width and height: means of squares."""
    return _means(picture, REDUCTION).round().astype(np.uint8)


def difference(actual: Picture, stored: Picture) -> str:
    """What tells a reduced picture from the stored one; empty where they are the same page."""
    taller = REDUCTION * (len(actual) - len(stored))
    if abs(taller) > _TALLER or actual.shape[1] != stored.shape[1]:
        return f"the page is {taller:+} pixels taller, {REDUCTION * (actual.shape[1] - stored.shape[1]):+} wider"
    rows = min(len(actual), len(stored))
    blocks = np.abs(_means(actual[:rows], BLOCK) - _means(stored[:rows], BLOCK)).max(axis=2)
    differ = blocks > LARGEST_DIFFERENCE
    if differ.mean() <= MOST_DIFFERENT:
        return ""
    first, last = (REDUCTION * BLOCK * int(edge) for edge in np.flatnonzero(differ.any(axis=1))[[0, -1]])
    return f"{differ.mean():.1%} of the blocks differ, from {first} to {last} pixels below the top"


def stored(page: str, view: str) -> Picture:
    """The stored picture of a page."""
    return np.asarray(Image.open(_path(page, view)).convert("RGB"))


def show(browser: Browser, page: str, view: str, folder: pathlib.Path) -> None:
    """Opens one of the pages in a view."""
    path = folder / f"{page}.html"
    if not path.is_file():
        path.write_text(PAGES[page](folder), encoding="utf-8")
    browser.show(path, *VIEWS[view])


def _means(picture: Picture, size: int) -> np.ndarray:
    rows, columns = (length // size * size for length in picture.shape[:2])
    squares = picture[:rows, :columns].reshape(rows // size, size, columns // size, size, 3)
    return squares.mean(axis=(1, 3))


def _path(page: str, view: str) -> pathlib.Path:
    return STORED / f"{page}-{view}.png"


def _store(picture: Picture, path: pathlib.Path) -> None:
    image = Image.fromarray(picture).quantize(_COLOURS, kmeans=2, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(stream.getvalue())


def _pictures() -> Iterator[tuple[str, str, Picture]]:
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        for page in PAGES:
            for view in VIEWS:
                show(browser, page, view, pathlib.Path(folder))
                yield page, view, browser.picture()


def main() -> int:
    """Compares all pictures, or stores them; with --full=FOLDER also writes them there as large as they are."""
    parser = argparse.ArgumentParser(description="Compares pictures of pages with the stored ones.")
    parser.add_argument("--renew", action="store_true", help="store the pictures instead of comparing them")
    parser.add_argument("--full", type=pathlib.Path, help="folder for pictures in full size")
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"{lacking} is not installed", file=sys.stderr)
        return 1
    changed = 0
    for page, view, picture in _pictures():
        if arguments.full:
            arguments.full.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(arguments.full / f"{page}-{view}.png")
        path = _path(page, view)
        words = difference(reduced(picture), stored(page, view)) if path.is_file() else "it is not stored"
        changed += bool(words)
        print(f"{page}, {view}: {words or 'as stored'}")
        if arguments.renew and words:
            _store(reduced(picture), path)
    return int(bool(changed) and not arguments.renew)


if __name__ == "__main__":
    raise SystemExit(main())
