"""Tokens of samples with images: the ids that transformers' processors give for the same texts and pictures."""

import dataclasses
import functools
import importlib

import numpy as np
import pytest
import tokenizers

from configs.modules.backbone import NEWLINE
from data.datasets.conversations import Conversations, SampleBuilder
from data.errors import DataError
from data.media.images import encode_image
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.canvas_tiling import CanvasTiling
from data.media.tilings.longest_edge import LongestEdge
from data.media.tilings.pan_and_scan import PanAndScan
from data.media.tilings.pixel_range import PixelRange
from data.media.tilings.square_image import SquareImage
from data.media.tilings.tiling import DynamicTiling
from data.records import ImagePart, Media, Record, TextPart, Turn
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat
from data.samples.token_format import TokenFormat
from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames
from data.text.image_layout import ImageLayout
from data.text.prompt_format import PromptFormat
from data.text.published_template import PublishedTemplate
from data.text.templates.chat_template import PALIGEMMA, PLAIN, ChatTemplate
from data.text.templates.find_template import find_template
from tests.data.real_data import photographs
from tests.data.text.tiny_tokenizer import byte_level_bpe

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
pytest.importorskip("torchvision")  # which image processors use
transformers = pytest.importorskip("transformers")

SIDE = 56
SQUARE = {"height": SIDE, "width": SIDE}
NO_PREFIX = dataclasses.replace(PLAIN, prefix=())
GRIDS = [[rows * SIDE, columns * SIDE] for rows, columns in AnyResolution().used_grids]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What a family of models is called in transformers, and what it is here.

    Attributes:
        processor, image_processor: (module, class) of each.
        tokens: Names of the tokens that its tokenizer knows by a role.
        image_settings, settings: Arguments of the image processor and of the processor.
        place: What stands for an image in a text.
        names: Tokens of its tokenizer that have a role here.
        tiling, layout, template, patches: How mmjax lays it out.
    """

    processor: tuple[str, str]
    image_processor: tuple[str, str]
    place: str
    image_settings: dict
    tiling: object
    names: dict
    tokens: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    layout: ImageLayout = ImageLayout()
    template: ChatTemplate = NO_PREFIX
    patch: int = 14
    merge: int = 1


FAMILIES = {
    "llava": Family(
        processor=("llava", "Llava"),
        image_processor=("llava", "Llava"),
        place="<image>",
        image_settings={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE},
        settings={"patch_size": 14, "vision_feature_select_strategy": "full"},
        tokens={"image_token": "<image>"},
        names={"image": "<image>"},
        tiling=SquareImage(side=SIDE, fit="crop"),
    ),
    "internvl": Family(
        processor=("internvl", "InternVL"),
        image_processor=("got_ocr2", "GotOcr2"),
        place="<IMG_CONTEXT>",
        image_settings={"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 6},
        settings={"image_seq_length": 4},
        tokens={
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
        names={"image": "<IMG_CONTEXT>", "image_start": "<img>", "image_end": "</img>"},
        tiling=DynamicTiling(tile_size=SIDE, max_tiles=6),
        merge=2,
    ),
    "qwen2_vl": Family(
        processor=("qwen2_vl", "Qwen2VL"),
        image_processor=("qwen2_vl", "Qwen2VL"),
        place="<|vision_start|><|image_pad|><|vision_end|>",
        image_settings={"size": {"shortest_edge": 28 * 28, "longest_edge": 30 * 28 * 28}},
        tokens={"image_token": "<|image_pad|>"},
        names={"image": "<|image_pad|>", "image_start": "<|vision_start|>", "image_end": "<|vision_end|>"},
        tiling=PixelRange(28 * 28, 30 * 28 * 28),
        merge=2,
    ),
    "gemma3": Family(
        processor=("gemma3", "Gemma3"),
        image_processor=("gemma3", "Gemma3"),
        place="<start_of_image>",
        image_settings={
            "size": SQUARE,
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 50,
            "pan_and_scan_max_num_crops": 3,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
        settings={"image_seq_length": 4},
        tokens={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        names={
            "image": "<image_soft_token>",
            "image_start": "<start_of_image>",
            "image_end": "<end_of_image>",
        },
        tiling=PanAndScan(side=SIDE, min_crop=50, max_crops=3),
        layout=ImageLayout(
            delimiters="tiles",
            before="\n\n",
            after="\n\n",
            original="Here is the original image ",
            crops=" and here are some crops to help you see better ",
            separator=" ",
        ),
        merge=2,
    ),
    "pixtral": Family(
        processor=("pixtral", "Pixtral"),
        image_processor=("pixtral", "Pixtral"),
        place="[IMG]",
        image_settings={"size": {"longest_edge": 100}, "patch_size": 14},
        settings={"patch_size": 14},
        tokens={"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
        names={"image": "[IMG]", "image_end": "[IMG_END]"},
        tiling=LongestEdge(100),
        layout=ImageLayout(row_break="[IMG_BREAK]"),
    ),
    "paligemma": Family(
        processor=("paligemma", "PaliGemma"),
        image_processor=("siglip", "Siglip"),
        place="<image>",
        image_settings={"size": SQUARE},
        tokens={"image_token": "<image>"},
        names={"image": "<image>", "bos": "<|begin_of_text|>"},
        tiling=SquareImage(side=SIDE),
        template=PALIGEMMA,
    ),
    "llava_onevision": Family(
        processor=("llava_onevision", "LlavaOnevision"),
        image_processor=("llava_onevision", "LlavaOnevision"),
        place="<image>",
        image_settings={"size": SQUARE, "image_grid_pinpoints": GRIDS},
        settings={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        tokens={"image_token": "<image>", "video_token": "<video>"},
        names={"image": "<image>"},
        tiling=AnyResolution(tile_size=SIDE),
        layout=ImageLayout(joined=True),
    ),
    "llama4": Family(
        processor=("llama4", "Llama4"),
        image_processor=("llama4", "Llama4"),
        place="<|image|>",
        image_settings={"size": SQUARE, "max_patches": 7},
        settings={"patch_size": 14},
        tokens={"image_token": "<|image|>"},
        names={"image": "<|patch|>", "image_start": "<|image_start|>", "image_end": "<|image_end|>"},
        tiling=CanvasTiling(tile_size=SIDE, max_tiles=7),
        layout=ImageLayout(tile_break="<|tile_x_separator|>", tile_row_end="<|tile_y_separator|>", whole="<|image|>"),
        merge=2,
    ),
}
ADDED = sorted(
    {name for family in FAMILIES.values() for name in (*family.tokens.values(), *family.names.values(), family.place)}
    | {"<|tile_x_separator|>", "<|tile_y_separator|>", "<|video_pad|>"}
)


@functools.cache
def vocabulary() -> str:
    """A tokenizer with the special tokens of all families."""
    model: tokenizers.Tokenizer = byte_level_bpe()
    model.no_truncation()
    model.no_padding()
    model.post_processor = None
    model.add_special_tokens([name for name in ADDED if "<|vision_start|><" not in name])
    return model.to_str()


def published_ids(family: Family, text: str, pictures) -> list[int]:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(vocabulary()),
        bos_token="<|begin_of_text|>",
        eos_token="<|im_end|>",
        extra_special_tokens=family.tokens,
    )
    module, name = family.image_processor
    backend = "" if module == "llama4" else "pil_"
    images = importlib.import_module(f"transformers.models.{module}.image_processing_{backend}{module}")
    suffix = "" if module == "llama4" else "Pil"
    image_processor = getattr(images, f"{name}ImageProcessor{suffix}")(**family.image_settings)
    if family.processor[0] == "paligemma":
        image_processor.image_seq_length = 16
    module, name = family.processor
    kind = getattr(importlib.import_module(f"transformers.models.{module}.processing_{module}"), f"{name}Processor")
    video = getattr(transformers, f"{name}VideoProcessor", None)  # of those that insist on one
    video_processor = {"video_processor": video()} if video else {}
    processor = kind(image_processor=image_processor, tokenizer=tokenizer, **video_processor, **family.settings)
    tensors = "np" if backend else "pt"
    outputs = processor(text=[text], images=[list(pictures)], return_tensors=tensors, **family.image_settings)
    (ids,) = outputs["input_ids"]
    return ids.tolist()


def builder(family: Family, source: str = "") -> SampleBuilder:
    names = SpecialTokenNames(pad="<|endoftext|>", eos="<|im_end|>", **family.names)
    tokenizer = HuggingFaceTokenizer(vocabulary(), names, PublishedTemplate(source) if source else None)
    tokens = TokenFormat(newline=family.layout.joined)
    form = SampleFormat((PatchFormat(patch=family.patch, merge=family.merge, max_length=100_000),), None, tokens)
    template = find_template("tokenizer", tokenizer) if source else family.template
    return SampleBuilder(template, tokenizer, form, family.tiling, family.layout)


def content(part):
    return TextPart(part) if isinstance(part, str) else ImagePart(Media("a", content=encode_image(part)))


def own_sample(family: Family, parts):
    return builder(family)(Record("r", (Turn("user", tuple(map(content, parts))),)), "seen")


def pictures():
    photograph = photographs()["china.jpg"]
    return [photograph[:height, :width].copy() for height, width in ((200, 300), (100, 100), (41, 130), (300, 90))]


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_equal_those_of_the_published_processor(name):
    family = FAMILIES[name]
    for picture in pictures():
        before, after = ("", "What?") if name == "paligemma" else ("Look at the picture: ", " What is in\n it?")
        expected = published_ids(family, f"{before}{family.place}{after}", [picture])
        sample = own_sample(family, [part for part in (before, picture, after) if not isinstance(part, str) or part])
        assert sample.layout.tokens.tolist() == expected


CHAT = """\
{%- for turn in messages -%}
{{ '<|im_start|>' + turn.role + '\n' }}
{%- for part in turn.content -%}
{%- if part.type == 'image' -%}{{ 'PLACE' }}{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


@pytest.mark.parametrize("name", ["llava", "internvl", "qwen2_vl", "gemma3", "pixtral", "llama4"])
def test_conversations_by_the_tokenizers_template_equal_the_published_processors(name):
    family, (first, second, *_) = FAMILIES[name], pictures()
    source = CHAT.replace("PLACE", family.place)
    talk = [
        ("user", ["Look: ", first, "and ", second, " What is in it?"]),
        ("assistant", ["A red flower."]),
        ("user", ["Where?"]),
        ("assistant", ["In China."]),
    ]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(vocabulary()))

    def entry(part):
        return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}

    messages = [{"role": role, "content": list(map(entry, parts))} for role, parts in talk]
    text = tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False)
    turns = tuple(Turn(role, tuple(map(content, parts))) for role, parts in talk)
    sample = builder(family, source)(Record("r", turns), "talk")
    assert sample.layout.tokens.tolist() == published_ids(family, text, [first, second])
    targets = sample.layout.targets[sample.layout.target_mask > 0].tolist()
    assert tokenizer.decode(targets) == "A red flower.<|im_end|>In China.<|im_end|>"


def test_two_images_stand_where_they_are():
    family, (first, second, *_) = FAMILIES["gemma3"], pictures()
    expected = published_ids(family, f"{family.place}and {family.place} differ", [first, second])
    assert own_sample(family, [first, "and ", second, " differ"]).layout.tokens.tolist() == expected


def test_encoder_outputs_of_sequences_are_taken_in_order():
    for name in ("pixtral", "llama4", "internvl", "gemma3"):
        sample = own_sample(FAMILIES[name], ["See ", pictures()[0]]).load(0)
        indices = sample.layout.encoder_indices["patches"]
        taken = indices[indices >= 0]
        cells = len(sample.encoder_inputs["patches"].values) // FAMILIES[name].merge ** 2
        assert taken.tolist() == list(range(cells)), name
        image = builder(FAMILIES[name]).tokenizer.special_tokens.image
        np.testing.assert_array_equal(indices >= 0, sample.layout.tokens == image)


def test_joined_maps_equal_those_of_llava_onevision():
    """The published function packs the features of tiles; here the features are their own numbers."""
    torch = pytest.importorskip("torch")
    from transformers.models.llava_onevision import modeling_llava_onevision as published

    class Model:
        config = transformers.LlavaOnevisionConfig(
            vision_config={"model_type": "siglip_vision_model", "image_size": SIDE, "patch_size": 14},
            image_grid_pinpoints=GRIDS,
        )

    for picture in pictures():
        sample = own_sample(FAMILIES["llava_onevision"], ["See ", picture])
        tiles = len(sample.items)
        features = torch.arange(tiles * 16, dtype=torch.float32).reshape(tiles, 16, 1)
        size = torch.tensor(picture.shape[:2])
        (packed,), _ = published.LlavaOnevisionModel.pack_image_features(
            Model, [features], [size], torch.tensor([float(NEWLINE)])
        )
        indices = sample.layout.encoder_indices["patches"]
        np.testing.assert_array_equal(indices[indices != -1], packed[:, 0].numpy())


def test_newlines_and_order_survive_packing_behind_another_sample():
    from data.data_config import RowCapacity
    from data.packing.rows.packed_rows import pack_samples

    family = FAMILIES["llava_onevision"]
    samples = [own_sample(family, ["See ", picture]).load(number) for number, picture in enumerate(pictures()[1:3])]
    cells = len(samples[0].encoder_inputs["patches"].values)
    total = sum(len(sample.encoder_inputs["patches"].values) for sample in samples)
    tokens = [len(sample.layout.tokens) for sample in samples]
    capacity = RowCapacity(tokens=sum(tokens), lengths={"patches": total}, samples=2)
    packed = pack_samples(samples, 1, capacity, builder(family).sample_format)
    (indices_of_row,) = packed.layout.encoder_indices["patches"]
    for sample, start, offset in ((samples[0], 0, 0), (samples[1], tokens[0], cells)):
        indices = sample.layout.encoder_indices["patches"]
        shifted = np.where(indices >= 0, indices + offset, indices)
        np.testing.assert_array_equal(indices_of_row[start : start + len(indices)], shifted)


def test_the_layout_belongs_to_the_data_set_and_to_saved_prompts():
    layout = FAMILIES["gemma3"].layout
    written = Conversations("train", images=layout).prompt_format
    assert written.images == layout and PromptFormat.from_json(written.to_json()) == written


def test_a_joined_map_needs_a_newline_vector():
    form = SampleFormat((PatchFormat(),), None)
    family = FAMILIES["llava_onevision"]
    with pytest.raises(DataError, match="set BackboneConfig.newline = True"):
        SampleBuilder(family.template, builder(family).tokenizer, form, family.tiling, family.layout)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ImageLayout(delimiters="rows"), "ImageLayout.delimiters is 'rows'; choose one of image, tiles"),
        (lambda: ImageLayout(original="See "), "set ImageLayout.delimiters to 'tiles'"),
        (lambda: ImageLayout(joined=True, row_break="[IMG_BREAK]"), "ImageLayout.joined leaves no place"),
        (lambda: Conversations("train", images=ImageLayout(whole="<|image|>")), "no special token '<|image|>'"),
    ],
)
def test_unusable_layouts_are_refused(build, message):
    with pytest.raises(DataError, match=message.replace("|", r"\|")):
        build()
