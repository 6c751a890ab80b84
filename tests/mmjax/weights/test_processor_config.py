"""Processor configurations that a folder has: what is read of them, and contradictions of config.json."""

import json

import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, checkpoint_matches, open_checkpoint
from mmjax.weights.registry import read_architecture
from mmjax.weights.safetensors_file import TensorHeader

VISION = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "image_size": 16,
    "patch_size": 4,
}
TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
LLAVA = {
    "model_type": "llava",
    "vision_config": {"model_type": "clip_vision_model", **VISION},
    "vision_feature_layer": -1,
    "text_config": {"model_type": "llama", **TEXT},
}
TOWER = {"model_type": "siglip_vision_model", **VISION}
AUDIO = {"model_type": "whisper", "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
IMAGES = {
    "image_processor_type": "CLIPImageProcessor",
    "image_mean": [0.25, 0.5, 0.75],
    "image_std": [0.5, 0.25, 1.0],
    "size": {"shortest_edge": 16},
    "crop_size": {"height": 16, "width": 16},
    "do_center_crop": True,
    "do_resize": True,
    "do_normalize": True,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "resample": 3,
}


@pytest.fixture
def opened(tmp_path):
    """Returns a function that opens a folder with these files."""

    def read(config, **files):
        texts = {"config.json": json.dumps(config)}
        texts |= {f"{name}.json": json.dumps(values) for name, values in files.items()}
        header = {"x": TensorHeader("F32", (1,))}
        arrays = iter([("x", np.zeros(1, np.float32))])
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write_checkpoint_folder(folder, "model", header, arrays, 10**6, texts)
        return open_checkpoint(folder).config

    return read


AGREEING = {
    "a flat file": {"preprocessor_config": IMAGES},
    "a section": {"processor_config": {"image_processor": IMAGES, "image_seq_length": 16, "patch_size": 4}},
    "both": {
        "preprocessor_config": IMAGES,
        "processor_config": {"processor_class": "LlavaProcessor", "num_additional_image_tokens": 1, "patch_size": 4},
    },
    "null and false": {"preprocessor_config": {**IMAGES, "do_sharpen": False, "contrast": None}},
}


@pytest.mark.parametrize("where", AGREEING)
def test_files_that_agree_give_the_normalisation(where, opened):
    (encoder,) = opened(LLAVA, **AGREEING[where]).encoders
    assert (encoder.pixel_mean, encoder.pixel_std) == ((-0.5, 0.0, 0.5), (1.0, 0.5, 2.0))


def test_pixels_that_are_not_normalised_are_in_the_unit_interval(opened):
    (encoder,) = opened(LLAVA, preprocessor_config={**IMAGES, "do_normalize": False}).encoders
    assert (encoder.pixel_mean, encoder.pixel_std) == ((-1.0,) * 3, (2.0,) * 3)


def test_one_number_is_the_mean_of_all_channels_as_in_transformers(opened):
    encoder = opened(LLAVA, preprocessor_config={**IMAGES, "image_mean": 0.5, "image_std": 0.5}).encoders[0]
    assert (encoder.pixel_mean, encoder.pixel_std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_a_tower_alone_reads_images_of_other_sizes(opened):
    assert opened(TOWER, preprocessor_config={**IMAGES, "crop_size": 32}).grid == 4


REFUSED = [
    ({"patch_size": 14}, "patch_size is 14, and vision.patch is 4"),
    ({"patch_size": {"height": 8, "width": 8}}, "patch_size is 8, and vision.patch is 4"),
    ({"merge_size": 2}, "merge_size is 2, and vision.merge is 1"),
    ({"temporal_patch_size": 2}, "temporal_patch_size is 2, and vision.temporal_patch is 1"),
    ({"image_seq_length": 9}, "image_seq_length is 9, and the number of tokens of 4 x 4 patches is 16"),
    ({"crop_size": {"height": 24, "width": 24}}, "crop_size is 24, 6 patches of 4, and vision has 4 along a side"),
    ({"do_center_crop": False, "size": {"height": 8, "width": 8}}, "size is 8, 2 patches of 4, and vision has 4"),
    ({"image_mean": None}, "has image_std and no image_mean"),
    ({"image_mean": None, "image_std": None}, "has no image_mean, so that pixels cannot be normalised"),
    ({"image_mean": [0.5], "image_std": [0.5]}, r"image_mean is \[0.5\]; give 3 numbers"),
    ({"rescale_factor": 1 / 127.5}, "rescale_factor is 0.00784"),
    ({"do_rescale": False}, "do_rescale is False"),
    (
        {"do_sharpen": True, "gamma": 2.2},
        "keys that are not known, and may change pixels: do_sharpen = True, gamma",
    ),
]


@pytest.mark.parametrize(("changed", "said"), REFUSED)
@pytest.mark.parametrize("form", ["flat", "section"])
def test_contradictions_are_refused_with_both_values(changed, said, form, opened):
    values = {**IMAGES, **changed}
    files = {"preprocessor_config": values} if form == "flat" else {"processor_config": {"image_processor": values}}
    with pytest.raises(UserError, match=said) as raised:
        opened(LLAVA, **files)
    assert ("preprocessor_config.json" if form == "flat" else "image_processor of processor_config.json") in str(
        raised.value
    )


def test_images_and_frames_that_are_normalised_in_two_ways_are_refused(opened):
    frames = {**IMAGES, "image_mean": [0.5, 0.5, 0.5]}
    with pytest.raises(UserError, match="image_mean is .* in preprocessor_config.json and .* in video_preprocessor"):
        opened(LLAVA, preprocessor_config=IMAGES, video_preprocessor_config=frames)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"feature_size": 128}, "feature_size is 128, and audio.mels is 80"),
        ({"sampling_rate": 8000}, "sampling_rate is 8000, and the only value for log-mel features is 16000"),
    ],
)
def test_processors_of_sounds_are_checked(changed, said, opened):
    sounds = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "sampling_rate": 16000}
    with pytest.raises(UserError, match=said):
        opened(AUDIO, preprocessor_config={**sounds, **changed})


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", ["CLIP", "Siglip", "Llava", "LlavaNext", "LlavaOnevision", "Gemma3", "Pixtral", "GotOcr2", "Qwen2VL", "Bit"]
)
def test_all_keys_of_published_processors_are_known(name, opened):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    processor = getattr(transformers, f"{name}ImageProcessor")()
    values = json.loads(processor.to_json_string())
    opened(TOWER, preprocessor_config={**values, "patch_size": 4, "merge_size": 1, "temporal_patch_size": 1})


def test_a_file_may_describe_images_and_sounds(opened):
    """As that of Qwen2.5-Omni."""
    sounds = {"feature_size": 80, "sampling_rate": 16000, "chunk_length": 300, "dither": 0.0, "padding_side": "left"}
    assert opened(LLAVA, preprocessor_config={**IMAGES, **sounds}).encoders[0].pixel_mean == (-0.5, 0.0, 0.5)
    with pytest.raises(UserError, match="sampling_rate is 8000"):
        opened(AUDIO, preprocessor_config={**IMAGES, **sounds, "sampling_rate": 8000})


def test_frames_of_clips_may_have_another_size(opened):
    frames = {**IMAGES, "do_center_crop": None, "size": {"height": 32, "width": 32}}
    opened(LLAVA, preprocessor_config=IMAGES, video_preprocessor_config=frames)


NEWEST_VIDEO = {
    **{key: value for key, value in IMAGES.items() if "crop" not in key},
    **{"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 131072, "longest_edge": 786432}},
    **{"patch_size": 4, "merge_size": 1, "min_frames": 4, "max_frames": 768, "fps": 2, "do_sample_frames": True},
    **{"cap_pixels_per_frame": True, "max_video_tokens": 768, "max_image_size": {"longest_edge": 1680000}},
    **{"max_duration": 60, "return_metadata": False},
}
"""Keys as transformers 5.24 saves them."""


@pytest.mark.parametrize("form", ["file", "section"])
def test_keys_of_the_newest_video_processors_are_known(form, opened, caplog):
    file = {"video_preprocessor_config": NEWEST_VIDEO, "preprocessor_config": IMAGES}
    section = {"processor_config": {"image_processor": IMAGES, "video_processor": NEWEST_VIDEO}}
    opened(LLAVA, **(file if form == "file" else section))
    assert not caplog.messages


def test_an_unknown_key_of_videos_is_a_warning_and_one_of_images_is_refused(opened, caplog):
    opened(LLAVA, processor_config={"image_processor": IMAGES, "video_processor": {**NEWEST_VIDEO, "deblock": 3}})
    assert caplog.messages == [
        "video_processor of processor_config.json has keys that are not known, and may change video clips: deblock = 3"
    ]
    with pytest.raises(UserError, match="not known, and may change pixels: deblock = 3"):
        opened(LLAVA, processor_config={"image_processor": {**IMAGES, "deblock": 3}})


@pytest.mark.parametrize(
    "changed",
    [
        {"rescale_factor": "1/255"},
        {"size": {"height": "16", "width": "16"}, "do_center_crop": False},
        {"size": {"height": ["16"], "width": 16}, "do_center_crop": False},
        {"image_mean": [0.5, "0.5", None]},
        {"image_mean": "0.5"},
        {"patch_size": ["4"]},
        {"image_seq_length": {"x": 1}},
    ],
)
def test_values_of_another_type_are_refused_in_a_line(changed, opened):
    with pytest.raises(UserError, match="preprocessor_config.json"):
        opened(LLAVA, preprocessor_config={**IMAGES, **changed})


def test_a_run_that_takes_the_decoder_alone_does_not_look_at_processors(tmp_path):
    architecture, whole = read_architecture(LLAVA)
    matches = checkpoint_matches(architecture, whole, whole)
    shapes = {name: of for match in matches for name, of in zip(match.tensor_names, match.tensor_shapes, strict=True)}
    arrays = ((name, np.zeros(shape, np.float32)) for name, shape in shapes.items())
    texts = {"config.json": json.dumps(LLAVA), "preprocessor_config.json": json.dumps({**IMAGES, "deblock": 3})}
    headers = {name: TensorHeader("F32", shape) for name, shape in shapes.items()}
    write_checkpoint_folder(tmp_path / "llava", "model", headers, arrays, 10**9, texts)
    parameter_initializer(as_model(whole.backbone), 0, (("backbone", str(tmp_path / "llava")),))
    for part in ("vision", "vision_projector", "model"):
        with pytest.raises(UserError, match="deblock = 3"):
            parameter_initializer(whole, 0, ((part, str(tmp_path / "llava")),))


def test_a_file_that_is_no_object_is_refused(opened):
    with pytest.raises(UserError, match="preprocessor_config.json is not an object"):
        opened(LLAVA, preprocessor_config=[1])
