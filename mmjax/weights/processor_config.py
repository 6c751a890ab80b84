"""The processor files of a checkpoint, which describe how pixels and sounds become inputs, and their checks.

A checkpoint has preprocessor_config.json, video_preprocessor_config.json or processor_config.json, in which version 5
of transformers has a section for each processor. `open_checkpoint` compares them with config.json.
"""

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from configs.common.errors import UserError
from configs.common.strict_json import read_json_file
from mmjax.weights.published.rules import Config

_LOG = logging.getLogger(__name__)

FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
SECTIONS = ("image_processor", "video_processor", "feature_extractor", "audio_processor")
PIXEL_KEYS = ("image_mean", "image_std")
"""Keys that belong to the architecture: how pixels are normalised."""

RGB = 3

SAME = {
    "patch_size": "patch",
    "merge_size": "merge",
    "spatial_merge_size": "merge",
    "temporal_patch_size": "temporal_patch",
    "num_additional_image_tokens": "prefix_tokens",
}
"""Keys of image and video processors that must equal a field of the vision encoder."""

SAME_OF_SOUNDS = {"sampling_rate": 16000, "hop_length": 160, "n_fft": 400}
"""Keys of audio processors, with the only value with which log-mel features are computed."""

OF_SOUNDS = frozenset(
    (
        *(*SAME_OF_SOUNDS, "feature_size", "chunk_length", "dither", "n_samples", "nb_max_frames", "padding_side"),
        *("padding_value", "return_attention_mask"),
    )
)
"""Keys of audio processors in a file that describes an image processor too (Qwen2.5-Omni)."""

TOKEN_COUNTS = ("image_seq_length", "num_image_tokens")

CHOSEN_BY_DATA = frozenset(
    (
        *("size", "crop_size", "resample", "do_resize", "do_center_crop", "do_pad", "pad_size", "do_convert_rgb"),
        *("default_to_square", "min_pixels", "max_pixels", "min_patches", "max_patches", "crop_to_patches"),
        *("max_num_patches", "image_grid_pinpoints", "vision_aspect_ratio", "resize_to_max_canvas"),
        *("do_pan_and_scan", "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"),
        *("pan_and_scan_min_ratio_to_activate", "do_sample_frames", "fps", "num_frames", "min_frames", "max_frames"),
        *("initial_shift", "reducing_gap", "aspect_ratio_setting", "max_image_size"),
        *("cap_pixels_per_frame", "max_video_tokens", "max_duration"),
    )
)
"""Keys that describe the tiling of images and frames: `data.media` has a tiling for each kind."""

WITHOUT_EFFECT = frozenset(
    (
        *("image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map"),
        *("data_format", "input_data_format", "device", "return_tensors", "disable_grouping", "model_input_names"),
        *("return_metadata", "return_mm_token_type_ids", "skip_tensor_conversion", "chat_template"),
    )
)
"""Keys that change no number of an input."""

CHECKED = frozenset(
    (*PIXEL_KEYS, *SAME, *TOKEN_COUNTS, "do_rescale", "rescale_factor", "do_normalize", "pixel_shuffle_ratio")
)
"""Keys that are compared with the model."""


@dataclasses.dataclass(frozen=True)
class ProcessorSection:
    """The contents of one file, or of a section of it, about one kind of input.

    Attributes:
        where: Names the section in messages.
        kind: Name of the section in processor_config.json; empty for values that all processors share.
        values: Values by key.
    """

    where: str
    kind: str
    values: Mapping[str, Any]


def read_processor_config(path: pathlib.Path) -> tuple[ProcessorSection, ...]:
    """Reads the sections of a folder's processor files; none for a folder without such files.

    Raises:
        UserError: A file cannot be read.
    """
    return tuple(
        section for file in FILES if (path / file).is_file() for section in _sections(file, read_json_file(path / file))
    )


def _sections(file: str, values: Any) -> Iterator[ProcessorSection]:
    if not isinstance(values, dict):
        raise UserError(f"{file} is not an object of settings")
    nested = {name: values[name] for name in SECTIONS if isinstance(values.get(name), dict)}
    for name, settings in nested.items():
        yield ProcessorSection(f"{name} of {file}", name, settings)
    others = {key: value for key, value in values.items() if key not in nested}
    if file == "video_preprocessor_config.json":
        yield ProcessorSection(file, "video_processor", others)
    elif file == "processor_config.json":
        yield ProcessorSection(file, "", others)
    else:
        sounds = "feature_size" in others or "sampling_rate" in others
        pictures = bool({"image_processor_type", "image_mean", "patch_size", "size"} & set(others))
        if sounds:
            yield ProcessorSection(file, "feature_extractor", others)
        if pictures or not sounds:
            settings = {key: value for key, value in others.items() if not sounds or key not in OF_SOUNDS}
            yield ProcessorSection(file, "image_processor", settings)


def pixel_normalisation(sections: Sequence[ProcessorSection]) -> dict[str, Any]:
    """Reads mean and standard deviation of pixels in [0, 1]; empty if no section has them.

    Raises:
        UserError: A section has one of them alone, or two sections differ.
    """
    values_by_key: dict[str, tuple[str, Any]] = {}
    for section in sections:
        if section.kind not in ("image_processor", "video_processor"):
            continue
        values = {key: section.values[key] for key in PIXEL_KEYS if section.values.get(key) is not None}
        if section.values.get("do_normalize") is False:
            values = {"image_mean": [0.0] * RGB, "image_std": [1.0] * RGB}
        if len(values) == 1:
            (missing,) = set(PIXEL_KEYS) - set(values)
            raise UserError(f"{section.where} has {', '.join(values)} and no {missing}; add it")
        for key, given in values.items():
            value = [given] * RGB if type(given) in (int, float) else given  # as transformers repeats it
            if (
                not isinstance(value, list)
                or len(value) != RGB
                or not all(type(number) in (int, float) for number in value)
            ):
                raise UserError(f"{section.where}: {key} is {value!r:.60}; give {RGB} numbers, of red, green and blue")
            where, other = values_by_key.setdefault(key, (section.where, value))
            if other != value:
                raise UserError(f"{key} is {other} in {where} and {value} in {section.where}; one encoder reads both")
    return {key: value for key, (_, value) in values_by_key.items()}


def check_processor(sections: Sequence[ProcessorSection], config: Config) -> None:
    """Checks that no processor contradicts the model.

    A key that is not known is refused where it may change images, and is a warning where it may change clips alone,
    which few runs have.

    Raises:
        UserError: A processor contradicts the model; names the key and both values.
    """
    encoders = config.encoders if isinstance(config, ModelConfig) else (config,)
    for encoder, section in itertools.product(encoders, sections):
        try:
            if isinstance(encoder, VisionConfig) and section.kind in ("", "image_processor", "video_processor"):
                _check_pictures(section, encoder, whole=isinstance(config, ModelConfig))
            if isinstance(encoder, AudioConfig) and section.kind in ("feature_extractor", "audio_processor"):
                _check_sounds(section, encoder)
        except (TypeError, AttributeError, ArithmeticError) as error:
            raise UserError(f"{section.where} has a value of a type that it cannot have: {error}") from error


def _check_pictures(section: ProcessorSection, encoder: VisionConfig, whole: bool) -> None:
    values = {key: value for key, value in section.values.items() if value is not None}
    for key, field in SAME.items():
        if key in values:
            _require(section, key, _side(section, key), getattr(encoder, field), f"{encoder.name}.{field}")
    if "pixel_shuffle_ratio" in values:
        _require(section, "pixel_shuffle_ratio", values["pixel_shuffle_ratio"], 1 / encoder.merge, "1 / merge")
    if not section.kind:
        _check_token_counts(section, values, encoder)
        return
    if values.get("do_rescale") is False or abs(values.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        factor = values.get("rescale_factor", "left out")
        raise UserError(
            f"{section.where}: do_rescale is {values.get('do_rescale', True)} and rescale_factor is {factor}; pixels "
            f"are always multiplied by 1/255 = {1 / 255}"
        )
    for key in PIXEL_KEYS:
        if key not in values and values.get("do_normalize", section.kind == "image_processor" and "size" in values):
            raise UserError(f"{section.where} has no {key}, so that pixels cannot be normalised; add it")
    if whole and encoder.positions == "learned" and section.kind == "image_processor":
        _check_size(section, values, encoder)
    _check_token_counts(section, values, encoder)
    unknown = [
        key
        for key in values
        if not key.startswith("_") and key not in CHOSEN_BY_DATA | WITHOUT_EFFECT | CHECKED and values[key] is not False
    ]
    if unknown:
        named = ", ".join(f"{key} = {values[key]!r:.60}" for key in unknown)
        if section.kind != "video_processor":
            raise UserError(f"{section.where} has keys that are not known, and may change pixels: {named}")
        _LOG.warning("%s has keys that are not known, and may change video clips: %s", section.where, named)


def _check_size(section: ProcessorSection, values: Mapping[str, Any], encoder: VisionConfig) -> None:
    """Checks the side of the encoder's images, where the processor makes squares of one size."""
    key = "crop_size" if values.get("do_center_crop") else "size"
    size = values.get(key)
    if isinstance(size, Mapping):
        sides = {size.get("height"), size.get("width")} if "height" in size else set()
    else:
        sides = {size} if isinstance(size, int) else set()
    for side in sides:
        if side is not None and side // encoder.patch != encoder.grid:
            raise UserError(
                f"{section.where}: {key} is {side}, {side // encoder.patch} patches of {encoder.patch}, and "
                f"{encoder.name} has {encoder.grid} along a side, which are {encoder.grid * encoder.patch} pixels"
            )


def _check_token_counts(section: ProcessorSection, values: Mapping[str, Any], encoder: VisionConfig) -> None:
    if encoder.positions != "learned":
        return
    for key in TOKEN_COUNTS:
        if key in values:
            owner = f"the number of tokens of {encoder.grid} x {encoder.grid} patches"
            _require(section, key, values[key], (encoder.grid // encoder.merge) ** 2, owner)


def _check_sounds(section: ProcessorSection, encoder: AudioConfig) -> None:
    values = {key: value for key, value in section.values.items() if value is not None}
    if "feature_size" in values:
        _require(section, "feature_size", values["feature_size"], encoder.mels, f"{encoder.name}.mels")
    for key, needed in SAME_OF_SOUNDS.items():
        if key in values:
            _require(section, key, values[key], needed, "the only value for log-mel features")


def _side(section: ProcessorSection, key: str) -> Any:
    """Returns a number, or the side of a square that is written as its height and width."""
    value = section.values[key]
    if isinstance(value, Mapping) and value.get("height") == value.get("width"):
        return value.get("height")
    return value


def _require(section: ProcessorSection, key: str, value: Any, needed: Any, owner: str) -> None:
    if value != needed:
        raise UserError(f"{section.where}: {key} is {value}, and {owner} is {needed}; use files of one checkpoint")
