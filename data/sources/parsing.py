"""Parsing of bytes of unknown quality into text, JSON and paths, with BadSampleError as the only error.

Every record source reads its entries with these functions.
"""

import json
import os
import pathlib

from configs.common.shown_text import shortened
from data.errors import BadSampleError
from data.records import Media

_MAX_SHOWN = 60  # characters of a value in a message
_MAX_PATH = 4096  # of Linux


def decode_utf8(where: str, content: bytes) -> str:
    """UTF-8 text, without a byte order mark; raises BadSampleError for anything else."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSampleError(where, f"it is not UTF-8 from byte {error.start} on") from error


def parse_json(where: str, text: str) -> object:
    """The value of a JSON text; raises BadSampleError with the position where it is malformed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSampleError(where, f"it is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many nested brackets
        raise BadSampleError(where, f"its JSON cannot be parsed: {error}") from error


def require_text(where: str, subject: str, value: object) -> str:
    """The value as a text that a tokenizer accepts.

    Args:
        where: Name of the sample.
        subject: Name of the value, such as "the caption".
        value: The value in the file.

    Raises:
        BadSampleError: The value is not a text, is blank, or contains a lone surrogate.
    """
    if not isinstance(value, str):
        raise BadSampleError(where, f"{subject} is not a text: {shown(value)}")
    if not value.strip():
        raise BadSampleError(where, f"{subject} is empty")
    return require_encodable(where, subject, value)


def require_encodable(where: str, subject: str, value: str) -> str:
    """The text itself; raises BadSampleError if it contains a lone surrogate, which JSON can spell and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadSampleError(where, f"{subject} has a lone surrogate at {error.start}") from error
    return value


def media_from_path(where: str, folder: str, value: object) -> Media:
    """The file within a folder that an entry names, by a relative path or by an absolute one.

    A path must not lead out of the folder, because entries come from files that anybody may have written. Symbolic
    links in the folder are followed, wherever they lead: whoever has the folder made them. Where the folder itself is
    reached through a link, an absolute path may name it with the link or without.

    Raises:
        BadSampleError: The value cannot be a path, or it leads out of the folder. A missing file is detected when it
            is read.
    """
    path = require_text(where, "the path of a file", value)
    if "\0" in path:
        raise BadSampleError(where, "the path of a file has a null character")
    if len(path) > _MAX_PATH:
        problem = f"the path of a file has {len(path)} characters: {shown(path)}"
        raise BadSampleError(where, f"{problem}; a medium itself, such as base64, is not read: write it to a file")
    root = os.path.abspath(folder)
    target = os.path.normpath(os.path.join(root, path))  # without `..`, which the system would resolve behind a link
    if not _is_within(root, target):
        root, target = os.path.realpath(root), os.path.realpath(target)
        if not _is_within(root, target):
            raise BadSampleError(where, f"the path {shown(path)} leads out of the folder {folder}")
    return Media.from_file(pathlib.Path(folder, os.path.relpath(target, root)))


def _is_within(folder: str, path: str) -> bool:
    return os.path.commonpath([folder, path]) == folder


def shown(value: object) -> str:
    """A value as it is shown in a message."""
    return shortened(repr(value), _MAX_SHOWN)
