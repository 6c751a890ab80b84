"""Damage to files: torn checkpoints, and images that no longer decode."""

import pathlib
import random
from collections.abc import Callable

from configs.common.strict_json import read_json_file
from mmjax.training.checkpoints.discovery import UNFINISHED_MARK
from mmjax.training.checkpoints.file_checksums import FILE_LIST


def truncate(path: pathlib.Path, chance: random.Random) -> None:
    """Cuts a file off, as a host does that stops before all is on the disk."""
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))


def flip_a_byte(path: pathlib.Path, chance: random.Random) -> None:
    """Changes one byte of a file to another value."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def remove(path: pathlib.Path, chance: random.Random) -> None:
    """Removes a file."""
    path.unlink()


DAMAGES: dict[str, Callable[[pathlib.Path, random.Random], None]] = {
    "a file truncated": truncate,
    "a byte flipped": flip_a_byte,
    "a file removed": remove,
}
"""Ways to damage a file, by a description in words."""

HALF_WRITTEN = "half-written"


def tear_checkpoint(checkpoint: pathlib.Path, chance: random.Random) -> str:
    """Damages one of the files of a checkpoint, or leaves it as a save that was interrupted does.

    Returns: A description of the damage.
    """
    listed = [checkpoint / name for name in sorted(read_json_file(checkpoint / FILE_LIST)["files"])]
    files = [file for file in (*listed, checkpoint / FILE_LIST) if file.stat().st_size]
    done = chance.choice([*DAMAGES, HALF_WRITTEN])
    if done == HALF_WRITTEN:
        for file in chance.sample(files, len(files) // 2):
            file.unlink()
        checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}{UNFINISHED_MARK}"))
        return done
    file = chance.choice(files)
    DAMAGES[done](file, chance)
    return f"{done}: {file.relative_to(checkpoint)}"


def damage_image(path: pathlib.Path, chance: random.Random) -> str:
    """Damages an image so that its header can still be read and its pixels cannot; returns what was done."""
    content = path.read_bytes()
    begin = content.index(b"IDAT") + 4
    if chance.random() < 0.5:
        path.write_bytes(content[: chance.randrange(begin + 4, len(content) - 16)])
        return "truncated"
    middle = chance.randrange(begin + 4, len(content) - 64)
    path.write_bytes(content[:middle] + bytes(32) + content[middle + 32 :])
    return "32 bytes zeroed"
