"""Bytes that somebody wrote -> text and JSON, or the reason why not, as one kind of error."""

import json
import pathlib

from data.errors import BadSampleError
from data.records import Media


def decode_utf8(where: str, content: bytes) -> str:
    """UTF-8 text, without the mark that some editors put before it; raises BadSampleError for anything else."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSampleError(where, f"it is not UTF-8 from byte {error.start} on") from error


def parse_json(where: str, text: str) -> object:
    """The value of a JSON text; raises BadSampleError with the place where it is malformed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSampleError(where, f"it is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets nested as deep
        raise BadSampleError(where, f"its JSON is beyond reason: {error}") from error


def require_text(where: str, what: str, value: object) -> str:
    """A value as text that a tokenizer can take.

    Args:
        where: Names the sample.
        what: Names the value: "the caption".
        value: What the file holds.

    Raises:
        BadSampleError: It is no text, is blank, or has half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise BadSampleError(where, f"{what} is no text: {_shortened(value)}")
    if not value.strip():
        raise BadSampleError(where, f"{what} is empty")
    return require_encodable(where, what, value)


def require_encodable(where: str, what: str, value: str) -> str:
    """The text itself; raises BadSampleError if no UTF-8 can hold it, as JSON's escapes allow."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadSampleError(where, f"{what} has half of a surrogate pair at {error.start}") from error
    return value


def media_from_path(where: str, folder: str, value: object) -> Media:
    """The file that an entry names, relative to a folder; an absolute path stands as it is.

    Raises:
        BadSampleError: The value cannot be a path. Whether the file is there is seen when it is read.
    """
    path = require_text(where, "the path of a file", value)
    if "\0" in path:
        raise BadSampleError(where, "the path of a file has a null character")
    return Media.from_file(pathlib.Path(folder, path))


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
