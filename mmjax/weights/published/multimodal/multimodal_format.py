"""Checkpoints of whole models: encoders with their projectors and a decoder, each under a prefix of its own.

The file of a model declares a `MultimodalFormat`, with tables of the keys of config.json that belong to neither an
encoder nor the decoder alone:

    FORMAT = MultimodalFormat(encoders=(PublishedEncoder(...),), decoders=by_model_type(*llama.PUBLISHED))
    PUBLISHED = (FORMAT.published("LlavaForConditionalGeneration", ("llava",)),)
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from configs.architectures import BackboneConfig, EncoderConfig, ModelConfig
from mmjax.weights.published.key_table import Table, Values, read_fields, write_table
from mmjax.weights.published.multimodal.mrope import read_sections, write_sections
from mmjax.weights.published.rules import (
    Config,
    PublishedArchitecture,
    Rule,
    Rules,
    require_round_trip,
    with_first_layers,
    with_prefix,
)

PIXEL_KEYS = ("image_mean", "image_std")
PIXEL_FIELDS = ("pixel_mean", "pixel_std")
"""Fields of an encoder that preprocessor_config.json describes, and not config.json."""

Tying = Literal["model", "either", "decoder"]
"""The object whose `tie_word_embeddings` ties the head: the whole model, either of the two, or the decoder."""

Architectures = Mapping[str, PublishedArchitecture]
"""Architectures by the `model_type` that config.json gives them within a whole model; the first name is written."""


Defaults = Mapping[str, Values]
"""Values that a file may leave out of a module's part, by the `model_type` of the part."""

TableOf = Callable[[Any], Table]
"""Makes the table of keys that describe a module outside its own part, given the module that the part describes."""


def by_model_type(*architectures: PublishedArchitecture, only: tuple[str, ...] = ()) -> Architectures:
    """Returns architectures by their own model types: by all of them, or by `only` these."""
    return {
        name: architecture
        for architecture in architectures
        for name in architecture.model_types
        if not only or name in only
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedEncoder:
    """An encoder within the checkpoint of a whole model.

    Attributes:
        key: Key of config.json that describes it.
        prefix: Prefix of its tensors.
        architectures: Architectures that it may have.
        projector: Rules of its projector, by the names in the whole checkpoint.
        keys: Keys that describe it besides those under its key, such as its projector's.
        defaults: Values that a file may leave out under the key; with some, a file may leave out the key itself.
        ignored: Patterns of its tensors without a parameter, without the prefix; None for the architecture's patterns,
            which include the projector where it lies within the encoder.
    """

    key: str = "vision_config"
    prefix: str
    architectures: Architectures
    projector: Callable[[Any], Iterable[Rule]] = lambda encoder: ()
    keys: TableOf = lambda encoder: ()
    defaults: Defaults = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] | None = None

    @property
    def config_type(self) -> type[EncoderConfig]:
        """Type of its configuration."""
        (kind,) = {architecture.config_type for architecture in self.architectures.values()}
        return kind

    def read_config(self, values: Mapping[str, Any]) -> Any:
        """Reads the configuration of the encoder with its projector.

        Args:
            values: The whole config.json.

        Raises:
            ValueError: It has none of the architectures, or a key has a value that cannot be computed.
        """
        own = values.get(self.key, {}) if self.defaults else values[self.key]
        pixels = {key: values[key] for key in PIXEL_KEYS if key in values}
        alone = read_part(self.key, {**pixels, **own}, self.architectures, self.defaults)
        return dataclasses.replace(alone, **read_fields(self.keys(alone), values))

    def write_config(self, encoder: EncoderConfig) -> dict[str, Any]:
        """Writes the keys of the whole config.json that describe the encoder; the inverse of `read_config`."""
        model_type, architecture = first_matching(encoder, self.architectures)
        part = {"model_type": model_type, **architecture.write_config(encoder)}
        return _joined(write_table(self.keys(encoder), encoder), {self.key: part})

    def rules(self, encoder: EncoderConfig) -> tuple[Rule, ...]:
        """Rules of the encoder and its projector."""
        _, architecture = first_matching(encoder, self.architectures)
        return (*with_prefix(architecture.rules(encoder)[encoder.name], self.prefix), *self.projector(encoder))

    def ignored_patterns(self, encoder: EncoderConfig) -> tuple[str, ...]:
        """Patterns of its tensors without a parameter."""
        patterns = self.ignored
        if patterns is None:
            _, architecture = first_matching(encoder, self.architectures)
            patterns = architecture.ignored(encoder)
        return tuple(self.prefix + pattern for pattern in patterns)

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Prefixes of its tensors in some files, as `PublishedArchitecture.aliases`."""
        own = {alias: None for each in self.architectures.values() for alias in each.aliases}
        for model in ("", "model."):
            for alias, prefix in own:
                yield f"{model}{self.prefix}{alias}", self.prefix + prefix
        yield f"model.{self.prefix}", self.prefix


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultimodalFormat:
    """The modules of a whole model, and their names in its checkpoint.

    Attributes:
        encoders: The encoders, in the order of the model's.
        decoders: Architectures that the decoder may have.
        decoder_key: Key of config.json that describes the decoder.
        decoder_prefix: Prefix of its tensors.
        keys: Keys that describe the backbone besides those under the decoder's key.
        sections: Whether positions count time, rows and columns (`mrope.py`).
        prepare: Completes the contents of a config.json.
        decoder_defaults: Values that a file may leave out under the key, as `PublishedEncoder.defaults`.
        tying: The object whose `tie_word_embeddings` ties the head.
        tied_by_default: Value of `tie_word_embeddings` where config.json leaves it out.
        prefix: Prefix of all tensors that have a parameter.
        newline: Name of the tensor of the backbone's newline vector; empty for a model without one.
        ignored_tensors: Patterns of tensors of no module.
        own_aliases: Prefixes of tensors in some files besides the modules' prefixes (`PublishedArchitecture.aliases`).
    """

    encoders: tuple[PublishedEncoder, ...]
    decoders: Architectures
    decoder_key: str = "text_config"
    decoder_prefix: str = "language_model."
    keys: TableOf = lambda backbone: ()
    sections: bool = False
    prepare: Callable[[Values], Values] = lambda values: values
    decoder_defaults: Defaults = dataclasses.field(default_factory=dict)
    tying: Tying = "model"
    tied_by_default: bool = False
    prefix: str = ""
    newline: str = ""
    ignored_tensors: tuple[str, ...] = ()
    own_aliases: tuple[tuple[str, str], ...] = ()

    def require_modules(self, model: ModelConfig) -> None:
        """Raises ValueError if the model does not consist of encoders of these kinds and a backbone."""
        kinds = [type(encoder).__name__ for encoder in model.encoders]
        expected = [encoder.config_type.__name__ for encoder in self.encoders]
        if kinds != expected or model.generators:
            generators = [type(generator).__name__ for generator in model.generators]
            raise ValueError(
                f"it consists of {', '.join((*kinds, *generators)) or 'no module'} beside the backbone; the published "
                f"model has {', '.join(expected)}"
            )

    def read_config(self, values: Values) -> ModelConfig:
        """Reads the configuration of the whole model.

        Raises:
            ValueError: A module has none of its architectures, or a key has a value that cannot be computed.
        """
        values = self.prepare(values)
        return ModelConfig(tuple(each.read_config(values) for each in self.encoders), self._read_backbone(values), ())

    def _read_backbone(self, values: Values) -> BackboneConfig:
        """Reads the configuration of the decoder, with the head tied as in the whole model."""
        own = values.get(self.decoder_key, {}) if self.decoder_defaults else values[self.decoder_key]
        tied = {} if self.tying == "decoder" else {"tie_word_embeddings": self._tied(values, own)}
        sections, own = read_sections(own) if self.sections else ((), own)
        alone = read_part(self.decoder_key, {**own, **tied}, self.decoders, self.decoder_defaults)
        fields = {"rope_sections": sections, "newline": bool(self.newline), **read_fields(self.keys(alone), values)}
        return dataclasses.replace(alone, **fields)

    def _tied(self, values: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        tied = bool(values.get("tie_word_embeddings", self.tied_by_default))
        return tied or (self.tying == "either" and bool(own.get("tie_word_embeddings", False)))

    def write_config(self, model: ModelConfig) -> dict[str, Any]:
        """Writes the config.json of a model, without the ids of tokens of images and sounds; inverts `read_config`.

        Raises:
            ValueError: The published model has other modules, or cannot compute a configuration.
        """
        self.require_modules(model)
        tied = {} if self.tying == "decoder" else {"tie_word_embeddings": model.backbone.tie_embeddings}
        encoders = zip(self.encoders, model.encoders, strict=True)
        parts = [published.write_config(encoder) for published, encoder in encoders]
        values = _joined(tied, *parts, self._write_backbone(model.backbone))
        read_back = self.read_config(values)
        for encoder, again in zip(model.encoders, read_back.encoders, strict=True):
            require_round_trip(encoder, again, PIXEL_FIELDS)
        require_round_trip(model.backbone, read_back.backbone)
        return values

    def _write_backbone(self, backbone: BackboneConfig) -> dict[str, Any]:
        alone = decoder_alone(backbone)
        model_type, decoder = first_matching(alone, self.decoders)
        part = {"architectures": [decoder.name], "model_type": model_type, **decoder.write_config(alone)}
        part = write_sections(part, backbone) if self.sections else part
        return _joined(write_table(self.keys(backbone), backbone), {self.decoder_key: part})

    def rules(self, model: ModelConfig) -> Rules:
        """Rules of the encoders, their projectors and the decoder, whose first layers may be pieces of their own."""
        self.require_modules(model)
        found = {
            encoder.name: with_prefix(published.rules(encoder), self.prefix)
            for published, encoder in zip(self.encoders, model.encoders, strict=True)
        }
        alone = decoder_alone(model.backbone)
        _, decoder = first_matching(alone, self.decoders)
        early = [f"early_{layer}" for layer in range(model.early_blocks)]
        of_decoder = decoder.rules(alone)[alone.name]
        of_decoder = with_first_layers(of_decoder, "blocks", early) if early else of_decoder
        of_decoder = with_prefix(of_decoder, self.prefix + self.decoder_prefix)
        newline = (Rule(self.newline, "embed/newline"),) if self.newline else ()
        return {**found, alone.name: (*of_decoder, *newline)}

    def ignored(self, model: ModelConfig) -> tuple[str, ...]:
        """Ignored tensors of the encoders, of the decoder and of no module."""
        alone = decoder_alone(model.backbone)
        _, decoder = first_matching(alone, self.decoders)
        of_encoders = (
            pattern
            for published, encoder in zip(self.encoders, model.encoders, strict=True)
            for pattern in published.ignored_patterns(encoder)
        )
        of_decoder = (self.decoder_prefix + pattern for pattern in decoder.ignored(alone))
        return (*(self.prefix + pattern for pattern in (*of_encoders, *of_decoder)), *self.ignored_tensors)

    def duplicates(self, model: ModelConfig) -> dict[str, str]:
        """Duplicates of the decoder's tensors."""
        alone = decoder_alone(model.backbone)
        _, decoder = first_matching(alone, self.decoders)
        prefix = self.prefix + self.decoder_prefix
        return {prefix + copy: prefix + name for copy, name in decoder.duplicates(alone).items()}

    @property
    def aliases(self) -> tuple[tuple[str, str], ...]:
        """Prefixes that version 5 of transformers uses in memory and in files, and the model's own."""
        decoder = (
            ("model.language_model.", f"{self.decoder_prefix}model."),
            ("lm_head.", f"{self.decoder_prefix}lm_head."),
        )
        of_modules = (*(alias for encoder in self.encoders for alias in encoder.aliases()), *decoder)
        aliases = (*self.own_aliases, *of_modules)
        return tuple((self.prefix + alias, self.prefix + prefix) for alias, prefix in aliases if alias != prefix)

    def published(self, name: str, model_types: tuple[str, ...]) -> PublishedArchitecture:
        """Makes the published architecture of a name and `model_type`s."""
        return PublishedArchitecture(
            name=name,
            model_types=model_types,
            config_type=ModelConfig,
            read_config=self.read_config,
            write_config=self.write_config,
            rules=self.rules,
            ignored=self.ignored,
            duplicates=self.duplicates,
            aliases=self.aliases,
        )


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Joins keys of a config.json; objects that several parts have under one key are joined too."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            joined[key] = {**joined[key], **value} if isinstance(joined.get(key), Mapping) else value
    return joined


def decoder_alone(backbone: BackboneConfig) -> BackboneConfig:
    """Returns the backbone as the decoder's own architecture describes it, without fields for tokens of images."""
    return dataclasses.replace(
        backbone,
        rope_sections=(),
        rope_interleaved=False,
        positions_per_second=0.0,
        bidirectional="none",
        newline=False,
    )


def read_part(key: str, values: Values, architectures: Architectures, defaults: Defaults) -> Any:
    """Reads the configuration of one module of a whole model.

    Args:
        key: Key of config.json that describes it, for messages.
        values: Value of the key; a file without `model_type` means the first architecture.
        architectures: Architectures that the module may have.
        defaults: Values that the file may leave out.

    Raises:
        ValueError: It has none of the architectures, or a key has a value that cannot be computed.
    """
    model_type = values.get("model_type", next(iter(architectures)))
    if model_type not in architectures:
        raise ValueError(f"{key} is of type {model_type!r}; choose one of {', '.join(architectures)}")
    return architectures[model_type].read_config({**defaults.get(model_type, {}), **values})


def first_matching(config: Config, architectures: Architectures) -> tuple[str, PublishedArchitecture]:
    """Returns the first of several architectures that can compute a configuration, with its model type.

    Raises:
        ValueError: No architecture can; the message says why.
    """
    reasons: dict[str, None] = {}
    for model_type, architecture in architectures.items():
        try:
            architecture.write_config(config)
        except ValueError as error:
            reasons[f"no {architecture.name}: {error}"] = None
        else:
            return model_type, architecture
    raise ValueError(f"{config.name} is {'; '.join(reasons)}")
