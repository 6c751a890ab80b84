"""Tokenizers of published models: the JSON files of Hugging Face's `tokenizers`."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, SupportsInt

import tokenizers

from data.errors import DataError
from data.text.tokenizer import SpecialTokens, missing_control_token_error, replace_lone_surrogates, validate_token_ids


@dataclasses.dataclass(frozen=True)
class SpecialTokenNames:
    """How a tokenizer's file spells the special tokens, role by role (`SpecialTokens`); None for those it has not.

    Published language models have no tokens for images or audio: name reserved ones, or add tokens to the file.
    """

    pad: str
    eos: str
    bos: str | None = None
    answer: str | None = None
    image: str | None = None
    audio: str | None = None
    generate: str | None = None
    unknown: str | None = None
    image_start: str | None = None
    image_end: str | None = None
    audio_start: str | None = None
    audio_end: str | None = None


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A `tokenizers` file and its special tokens, which no text can spell: neither those named nor those it marks.

    Attributes:
        content: The file's text.
        names: Its special tokens.

    Raises:
        DataError: Not such a file, or it lacks a named token.
    """

    content: str = dataclasses.field(repr=False)
    names: SpecialTokenNames

    def __post_init__(self) -> None:
        known = self._model.get_vocab(with_added_tokens=True)
        for role, name in dataclasses.asdict(self.names).items():
            if name is not None and name not in known:
                raise DataError(
                    f"the tokenizer has no token {name!r}, which TokenNames.{role} names; name another, or add it to "
                    "the file: Tokenizer.add_special_tokens of the package tokenizers, then save"
                )
        _ = self.special_tokens  # Two roles of one token are refused at start too.

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], names: SpecialTokenNames) -> "HuggingFaceTokenizer":
        """Reads a `tokenizer.json`; raises DataError where it cannot be used."""
        try:
            return cls(pathlib.Path(path).read_text(encoding="utf-8"), names)
        except (OSError, UnicodeDecodeError, DataError) as error:
            raise DataError(f"{os.fspath(path)}: {error}") from error

    @functools.cached_property
    def _model(self) -> tokenizers.Tokenizer:
        try:
            fields = json.loads(self.content)
            named = set(dataclasses.asdict(self.names).values())
            for token in fields.get("added_tokens", ()):
                token["special"] |= token["content"] in named
            model = tokenizers.Tokenizer.from_str(json.dumps(fields))
        # The package raises Exception itself.
        except Exception as error:
            raise DataError(f"not a file of the package tokenizers ({error}); take a model's tokenizer.json") from error
        # A file may ask for both; lengths are the pipeline's business.
        model.no_truncation()
        model.no_padding()
        model.encode_special_tokens = True  # special tokens in a text are read as text
        return model

    @functools.cached_property
    def _controls(self) -> dict[str, int]:
        """The tokens that no text may spell, by name."""
        named = {name for name in dataclasses.asdict(self.names).values() if name}
        marked = {token.content for token in self._model.get_added_tokens_decoder().values() if token.special}
        return {name: self._model.token_to_id(name) for name in (named | marked) - self._unknown}

    @functools.cached_property
    def _unknown(self) -> set[str | None]:
        """What stands for the unknown, by its role or in the file's own words: a text may lead to it."""
        model = json.loads(self.content)["model"]
        number = model.get("unk_id")  # Unigram's
        return {self.names.unknown, model.get("unk_token"), None if number is None else model["vocab"][number][0]}

    @functools.cached_property
    def _guarded(self) -> frozenset[int]:
        return frozenset(self._controls.values())

    @functools.cached_property
    def _doubles_a_first_space(self) -> bool:
        """Whether it puts a space before every text, as Llama's SentencePiece does, even one that begins with one."""
        normalizer = json.loads(self.content).get("normalizer") or {}
        steps = normalizer.get("normalizers", [normalizer])
        return any(step.get("type") == "Prepend" for step in steps)

    @functools.cached_property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self._model.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """The ids of the names."""
        named = dataclasses.asdict(self.names)
        return SpecialTokens(**{role: name and self._model.token_to_id(name) for role, name in named.items()})

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without the tokens that its file would add around it.

        Where the vocabulary holds a special token as a word that a text could spell (Unigram models do), the text is
        cut within that word.

        Raises:
            DataError: A single character of the text becomes a special token.
        """
        text = replace_lone_surrogates(text)
        if self._doubles_a_first_space:
            text = text.removeprefix(" ")
        encoding = self._model.encode(text, add_special_tokens=False)
        spelt = [span for number, span in zip(encoding.ids, encoding.offsets, strict=True) if number in self._guarded]
        if not spelt:
            return encoding.ids
        if len(text) < 2:
            raise DataError(f"the tokenizer makes a special token of the text {text!r}; name another for its role")
        cuts = [min(max(1, sum(span) // 2), len(text) - 1) for span in spelt]
        pieces = itertools.pairwise(sorted({0, *cuts, len(text)}))
        return [number for start, end in pieces for number in self.encode(text[start:end])]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Text of ids; special tokens vanish, `unknown` does not unless its file marks it."""
        numbers = validate_token_ids(ids, self.vocabulary_size)
        return self._model.decode([number for number in numbers if number not in self._guarded])

    def control_token_id(self, name: str) -> int:
        """The id of a token that the file marks as special, or that is named."""
        if name not in self._controls:
            raise missing_control_token_error(self, name)
        return self._controls[name]

    def to_json(self) -> str:
        """The file and the names, so that a checkpoint needs no other file."""
        names = dataclasses.asdict(self.names)
        return json.dumps({"kind": "hugging_face", "names": names, "content": self.content}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "HuggingFaceTokenizer":
        """The tokenizer that `to_json` wrote; raises DataError for another text."""
        try:
            fields = json.loads(text)
            content, names = fields["content"], SpecialTokenNames(**fields["names"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"not a tokenizer written by HuggingFaceTokenizer.to_json: {error!r}") from error
        return cls(content, names)

    def __reduce__(self) -> tuple[Any, ...]:
        """Built again from its fields in another process: the package's own pickle forgets what is special."""
        return type(self), (self.content, self.names)
