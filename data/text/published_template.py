"""The chat template that a published tokenizer comes with: its text, as its files have it.

`JinjaTemplate` renders it.
"""

import dataclasses
import json
import pathlib
from typing import Any

from data.errors import DataError

TEMPLATE_FILE = "chat_template.jinja"
SETTINGS_FILES = ("chat_template.json", "tokenizer_config.json")
"""Files whose key `chat_template` has it where there is no file of its own: of a processor, of a tokenizer."""


@dataclasses.dataclass(frozen=True)
class PublishedTemplate:
    """A chat template in Jinja.

    Attributes:
        source: Text of the template.
        variables: Names and spellings of special tokens that the template may use, such as `bos_token`.
    """

    source: str = dataclasses.field(repr=False)
    variables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_json(cls, fields: Any) -> "PublishedTemplate":
        """The template that `dataclasses.asdict` wrote; raises TypeError or KeyError for another value."""
        source, variables = fields["source"], tuple((name, token) for name, token in fields["variables"])
        if not all(isinstance(text, str) for text in (source, *(text for pair in variables for text in pair))):
            raise TypeError("a chat template and the spellings of its tokens are texts")
        return cls(source, variables)


def read_published_template(folder: pathlib.Path) -> PublishedTemplate | None:
    """The chat template of a folder with a published tokenizer; None if it has none.

    Raises:
        DataError: One of its files cannot be read.
    """
    settings = {file: _read_object(folder / file) for file in SETTINGS_FILES if (folder / file).is_file()}
    source = _template_of(folder, settings)
    if source is None:
        return None
    variables = {
        name: spelling
        for name, token in settings.get("tokenizer_config.json", {}).items()
        if name.endswith("_token")
        and isinstance(spelling := token.get("content") if isinstance(token, dict) else token, str)
    }
    return PublishedTemplate(source, tuple(variables.items()))


def _template_of(folder: pathlib.Path, settings: dict[str, dict[str, Any]]) -> str | None:
    if (folder / TEMPLATE_FILE).is_file():
        try:
            return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder / TEMPLATE_FILE}: {error}") from error
    for file, values in settings.items():
        source = values.get("chat_template")
        if isinstance(source, list):  # several templates by name
            named = (entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default")
            source = next(named, {}).get("template")
        if isinstance(source, str):
            return source
        if source is not None:
            raise DataError(f"{folder / file}: chat_template is neither a text nor a list with one called 'default'")
    return None


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))  # such files have whole numbers of any size
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} is not an object of settings")
    return values
