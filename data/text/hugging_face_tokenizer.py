"""Tokenizers of published models: the `tokenizer.json` files of Hugging Face's package `tokenizers`."""

import base64
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, SupportsInt

import tokenizers

from configs.common.strict_json import parse_json
from data.errors import DataError
from data.text.published_template import PublishedTemplate, read_published_template
from data.text.tokenizer import (
    Preceding,
    SpecialTokens,
    missing_control_token_error,
    replace_lone_surrogates,
    validate_token_ids,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokenNames:
    """Spelling of each special token (`SpecialTokens`) in a tokenizer's file; None for roles without a token.

    Published language models have no tokens for images or audio: name reserved tokens, or add tokens to the file.
    """

    pad: str
    eos: str
    bos: str | None = None
    answer: str | None = None
    image: str | None = None
    audio: str | None = None
    video: str | None = None
    generate: str | None = None
    unknown: str | None = None
    image_start: str | None = None
    image_end: str | None = None
    audio_start: str | None = None
    audio_end: str | None = None


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A `tokenizers` file with named special tokens.

    No text can spell a special token, neither a named one nor one that the file marks as special.

    Attributes:
        content: Text of the file.
        names: Spellings of the special tokens in the file.
        chat_template: The chat template that the file comes with; None for none.

    Raises:
        DataError: The text is not such a file, or lacks a named token.
    """

    content: str = dataclasses.field(repr=False)
    names: SpecialTokenNames
    chat_template: PublishedTemplate | None = None

    def __post_init__(self) -> None:
        vocabulary = self._model.get_vocab(with_added_tokens=True)
        for role, name in dataclasses.asdict(self.names).items():
            if name is not None and name not in vocabulary:
                raise DataError(
                    f"the tokenizer has no token {name!r}, which SpecialTokenNames.{role} names; name another, or add "
                    "it to the file: Tokenizer.add_special_tokens of the package tokenizers, then save"
                )
        _ = self.special_tokens  # raises if one token has two roles

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], names: SpecialTokenNames) -> "HuggingFaceTokenizer":
        """Reads a `tokenizer.json` and the chat template beside it; raises DataError if one cannot be used."""
        path = pathlib.Path(path)
        template = read_published_template(path.parent)
        try:
            return cls(path.read_text(encoding="utf-8"), names, template)
        except (OSError, UnicodeDecodeError, DataError) as error:
            raise DataError(f"{os.fspath(path)}: {error}") from error

    @functools.cached_property
    def _model(self) -> tokenizers.Tokenizer:
        try:
            fields = json.loads(self.content)
            names = set(dataclasses.asdict(self.names).values())
            for token in fields.get("added_tokens", ()):
                token["special"] |= token["content"] in names
            _check_charsmaps(fields.get("normalizer"))
            with _panics_as_errors():
                model = tokenizers.Tokenizer.from_str(json.dumps(fields))
        # The package raises Exception itself.
        except Exception as error:
            raise DataError(f"not a file of the package tokenizers ({error}); use a model's tokenizer.json") from error
        # A file may ask for truncation and padding; the pipeline decides lengths.
        model.no_truncation()
        model.no_padding()
        model.encode_special_tokens = True  # special tokens within a text are read as text
        return model

    @functools.cached_property
    def _control_tokens(self) -> dict[str, int]:
        """Ids of the tokens that no text may spell, by name."""
        named = {name for name in dataclasses.asdict(self.names).values() if name}
        marked = {token.content for token in self._model.get_added_tokens_decoder().values() if token.special}
        return {name: self._id_of(name) for name in (named | marked) - self._unknown_names}

    @property
    def control_token_patterns(self) -> dict[str, str]:
        """By the name of each token that no text may spell, a regular expression of the characters that it matches."""
        strips = {
            token.content: (token.lstrip, token.rstrip) for token in self._model.get_added_tokens_decoder().values()
        }
        spaces = {name: [r"\s*" if side else "" for side in strips.get(name, ())] for name in self._control_tokens}
        return {name: re.escape(name).join(sides or ["", ""]) for name, sides in spaces.items()}

    def _id_of(self, name: str) -> int:
        token_id = self._model.token_to_id(name)
        assert token_id is not None, name
        return token_id

    @functools.cached_property
    def _unknown_names(self) -> set[str | None]:
        """Names of the token for unknown text, by its role and by the file: a text may lead to it."""
        model = json.loads(self.content)["model"]
        index = model.get("unk_id")  # of a Unigram model
        return {self.names.unknown, model.get("unk_token"), None if index is None else model["vocab"][index][0]}

    @functools.cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._control_tokens.values())

    @functools.cached_property
    def _model_behind_token(self) -> tokenizers.Tokenizer:
        """The tokenizer for text behind a special token: some put a space before the first text alone."""
        return _without_leading_space(self._model, first_only=True)

    @functools.cached_property
    def _model_behind_text(self) -> tokenizers.Tokenizer:
        """The tokenizer for text that goes on behind text, before which none puts a space."""
        return _without_leading_space(self._model, first_only=False)

    @functools.cached_property
    def vocabulary_size(self) -> int:
        """One more than the largest token id."""
        return max(self._model.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_tokens(self) -> SpecialTokens:
        """The ids of the named tokens."""
        names: dict[str, str] = {role: name for role, name in dataclasses.asdict(self.names).items() if name}
        return SpecialTokens(**{role: self._id_of(name) for role, name in names.items()})

    def encode(self, text: str, behind: Preceding = "nothing") -> list[int]:
        """The token ids of a text, without the tokens that the file would add around it.

        They equal the ids that the package gives for the text within a longer one: Llama's SentencePiece puts a space
        before a text, some variants before the first text alone, none within a text.

        Where the vocabulary holds a special token as a word that a text can spell (Unigram models do), the text is
        split within that word.

        Raises:
            DataError: A single character of the text becomes a special token, or the package fails.
        """
        text = replace_lone_surrogates(text)
        match behind:
            case "nothing":
                model = self._model
            case "token":
                model = self._model_behind_token
            case "text":
                model = self._model_behind_text
        with _panics_as_errors():
            encoding = model.encode(text, add_special_tokens=False)
        control_spans = [
            span for token_id, span in zip(encoding.ids, encoding.offsets, strict=True) if token_id in self._control_ids
        ]
        if not control_spans:
            return encoding.ids
        if len(text) < 2:
            raise DataError(
                f"the tokenizer makes a special token of the text {text!r}; name another token for that role"
            )
        cuts = [min(max(1, sum(span) // 2), len(text) - 1) for span in control_spans]
        pieces = itertools.pairwise(sorted({0, *cuts, len(text)}))
        return [
            token_id for start, end in pieces for token_id in self.encode(text[start:end], "text" if start else behind)
        ]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of token ids; special tokens are dropped, but not `unknown` unless the file marks it as special."""
        token_ids = validate_token_ids(ids, self.vocabulary_size)
        with _panics_as_errors():
            return self._model.decode([token_id for token_id in token_ids if token_id not in self._control_ids])

    def control_token_id(self, name: str) -> int:
        """The id of a token that is named or that the file marks as special; raises DataError for another."""
        if name not in self._control_tokens:
            raise missing_control_token_error(self, name)
        return self._control_tokens[name]

    def special_name(self, token_id: int) -> str | None:
        """The file's spelling of a token that is named, marked as special or for unknown text; None for others."""
        is_special = token_id in self._control_ids or token_id == self.special_tokens.unknown
        return self._model.id_to_token(token_id) if is_special else None

    def to_json(self) -> str:
        """The file and the names, so that a checkpoint needs no other file."""
        names = dataclasses.asdict(self.names)
        template = self.chat_template and dataclasses.asdict(self.chat_template)
        fields = {"kind": "hugging_face", "names": names, "chat_template": template, "content": self.content}
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "HuggingFaceTokenizer":
        """The tokenizer that `to_json` wrote; raises DataError for another text."""
        try:
            fields = parse_json(text, "the tokenizer", DataError)
            content, names = fields["content"], SpecialTokenNames(**fields["names"])
            if not all(isinstance(value, str | None) for value in (content, *dataclasses.asdict(names).values())):
                raise TypeError("the file and the names of tokens are texts")
            template = fields["chat_template"] and PublishedTemplate.from_json(fields["chat_template"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a tokenizer written by HuggingFaceTokenizer.to_json: {error!r}") from error
        return cls(content, names, template or None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the fields: the package's own pickle loses which tokens are special."""
        return type(self), (self.content, self.names, self.chat_template)


@contextlib.contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Raises DataError where the package, which is written in Rust, panics: such an exception is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the package tokenizers fails ({error}); replace the model's tokenizer.json") from error


def _check_charsmaps(normalizer: Any) -> None:
    """Checks the base64 data of SentencePiece's normalizers: the size of a trie, the trie, and texts.

    The package panics, with a message of its own on standard error, where it cannot read the data.

    Raises:
        ValueError: One is damaged.
    """
    fields = normalizer if isinstance(normalizer, dict) else {}
    for inner in fields.get("normalizers") or ():
        _check_charsmaps(inner)
    if fields.get("type") != "Precompiled":
        return
    content = base64.b64decode(fields["precompiled_charsmap"] or "", validate=True)
    size, rest = int.from_bytes(content[:4], "little"), content[4:]
    if len(content) < 4 or size > len(rest):
        raise ValueError(f"the trie of its Precompiled normalizer has {len(rest)} bytes, of {size}")
    rest[size // 4 * 4 :].decode("utf-8")


def _without_leading_space(model: tokenizers.Tokenizer, first_only: bool) -> tokenizers.Tokenizer:
    """A tokenizer that puts no space before a text.

    Args:
        model: The tokenizer; it is returned itself if nothing changes.
        first_only: Whether only a space is left out that is put before the first of several texts.
    """
    fields = json.loads(model.to_str())
    before = json.dumps(fields)
    splitter = fields["pre_tokenizer"] or {}
    first_step = next(iter(splitter.get("pretokenizers", [splitter])), {})
    match first_step:
        case {"type": "Metaspace", "prepend_scheme": scheme} if scheme == "first" or not first_only:
            first_step["prepend_scheme"] = "never"
        case {"type": "ByteLevel"} if not first_only:
            first_step["add_prefix_space"] = False
    if not first_only:
        normalizer = fields["normalizer"] or {}
        steps = [step for step in normalizer.get("normalizers", [normalizer]) if step.get("type") != "Prepend"]
        fields["normalizer"] = {"type": "Sequence", "normalizers": steps} if normalizer else None
    if json.dumps(fields) == before:
        return model
    changed = tokenizers.Tokenizer.from_str(json.dumps(fields))
    changed.encode_special_tokens = model.encode_special_tokens
    return changed
