"""The fenced blocks of README.md and docs/: what each holds, and whether `.ci/first_session.py` runs it.

The info string of a fence says both. ```` ```bash ```` is run as it stands, ```` ```bash not run: needs a cluster ````
is not. Python and gin whose first line is a comment with a path, such as `# mine.gin`, are that file.
"""

import dataclasses
import pathlib
import re
import textwrap

RUN = ("bash", "python", "gin")
"""Languages of blocks that are run."""

SHOWN = ("json", "text")
"""Languages of blocks that are only read: plans and requests, drawings and output."""

_NOT_RUN = "not run: "
_FENCED = re.compile(r"^(?P<indent> *)```(?P<info>.*)\n(?P<text>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE)
_FILE = re.compile(r"# (\S+\.(?:py|gin))\n")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        where: The document and the line of the fence, such as `docs/how_to/runs.md:71`.
        language: The first word of the info string.
        reason: Why it is not run; empty where it is.
        text: What stands between the fences.
    """

    where: str
    language: str
    reason: str
    text: str

    @property
    def is_run(self) -> bool:
        """Whether the first session runs it."""
        return self.language in RUN and not self.reason

    @property
    def file(self) -> str:
        """The path of the file that it is; empty if it is none."""
        named = _FILE.match(self.text)
        return named[1] if named else ""


def documents(home: pathlib.Path) -> list[pathlib.Path]:
    """README.md, then the pages of docs/, tutorials first; docs/site is that of the site alone."""
    pages = sorted(path for path in (home / "docs").glob("*/*.md") if path.parent.name != "site")
    return [home / "README.md", *sorted(pages, key=lambda path: path.parent.name != "tutorials")]


def read_blocks(document: pathlib.Path, home: pathlib.Path) -> list[Block]:
    """The fenced blocks of a document, in order.

    Raises:
        ValueError: What follows the language says something else than why the block is not run.
    """
    text = document.read_text()
    blocks = []
    for match in _FENCED.finditer(text):
        where = f"{document.relative_to(home)}:{text.count(chr(10), 0, match.start()) + 1}"
        language, _, rest = match["info"].partition(" ")
        reason = rest.removeprefix(_NOT_RUN)
        if rest and (not rest.startswith(_NOT_RUN) or not reason.strip()):
            raise ValueError(f"{where}: {rest!r} behind {language}; write nothing, or why it is not run: {_NOT_RUN}...")
        blocks.append(Block(where, language, reason, textwrap.dedent(match["text"])))
    return blocks


def without_blocks(document: pathlib.Path) -> str:
    """The text of a document outside of its fenced blocks."""
    return _FENCED.sub("", document.read_text())
