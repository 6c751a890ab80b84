"""Greedy answers of a small random Qwen2.5-VL to prompts with pictures equal those of transformers' `generate`.

In float32 on both sides, with cached keys: the logits of every step agree to rounding, so nearly tied tokens come out
alike, also with the penalty on repetition that published configurations of generation set.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.data_config import RowCapacity
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from mmjax.generation.decoding import decode_answers
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.generation.sampling import Sampling
from tests.mmjax.weights.published.encoders.vision_parity import picture
from tests.mmjax.weights.published.multimodal.mixed_prompts import clip_items, published_grid, published_patches
from tests.mmjax.weights.published.multimodal.vision_language_parity import ours
from tests.mmjax.weights.published.parity import assert_close, randomise_weights

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, START, VIDEO, END = 39, 38, 37, 2
VISION = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": 4,
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 36,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
SIZES = ((16, 24), (24, 40), (8, 56), (32, 16), (40, 40), (16, 72))  # in pixels; a token takes 8 x 8
ROW, MOST = 64, 12
PROMPTS = [
    [1, START, *[IMAGE] * (height * width // 64), *np.random.default_rng(number).integers(3, 36, 4 + number).tolist()]
    for number, (height, width) in enumerate(SIZES)
]


class Models:
    """The two models, from one folder."""

    def __init__(self, folder):
        config = transformers.Qwen2_5_VLConfig(
            vision_config=VISION,
            text_config=TEXT,
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=START,
            tie_word_embeddings=False,
        )
        self.theirs = randomise_weights(transformers.Qwen2_5_VLForConditionalGeneration(config), 0.3)
        self.theirs.save_pretrained(folder)
        self.config, self.modules, self.parameters = ours(folder)
        self.backbone = CachedBackbone(self.config, self.modules)

    @functools.cached_property
    def arrays(self) -> dict:
        """Each prompt in a row of its own, longer than any of them."""
        form = SampleFormat.for_model(self.config, {"patches": 1000})
        capacity, rows = RowCapacity(tokens=ROW, lengths={"patches": 128}, samples=1), []
        for number, (tokens, size) in enumerate(zip(PROMPTS, SIZES, strict=True)):
            items = list(clip_items(picture(number, *size)[None], form.encoders[0]))
            layout = lay_out_tokens(tokens, [], [range(len(tokens) - 1, len(tokens))], {"patches": (IMAGE, VIDEO)})
            sample = SampleMetadata(kind="prompt", layout=layout, sample_format=form, items=items).load(number)
            rows.append(build_global_batch(pack_samples([sample], 1, capacity, form), self.config, form).arrays)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)

    def published(self, number: int, penalty: float):
        """(tokens, logits of every step before the penalty) of transformers."""
        grid = published_grid(self.config, picture(number, *SIZES[number])[None])
        row = jax.tree.map(lambda array: np.asarray(array[number : number + 1]), self.arrays)
        patches = published_patches(self.config, row)[: int(np.prod(grid))]
        tokens = torch.tensor([PROMPTS[number]])
        with torch.no_grad():
            found = self.theirs.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                mm_token_type_ids=(tokens == IMAGE).int(),
                pixel_values=torch.from_numpy(patches),
                image_grid_thw=torch.tensor([grid]),
                max_new_tokens=MOST,
                do_sample=False,
                repetition_penalty=penalty,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return found.sequences[0, len(PROMPTS[number]) :].tolist(), np.stack([of[0].numpy() for of in found.logits])

    def answers(self, penalty: float) -> list[list[int]]:
        """Our tokens, with the token that ends an answer."""
        decode = functools.partial(
            decode_answers,
            self.backbone,
            allowed_tokens=jnp.ones(TEXT["vocab_size"], bool),
            end_token=END,
            max_tokens=MOST,
            sampling=Sampling(repetition_penalty=penalty),
        )
        lengths = jnp.array(list(map(len, PROMPTS)))
        decoded = jax.jit(decode)(self.parameters, self.arrays, lengths, jnp.zeros(len(PROMPTS), jnp.int32))
        return [[*tokens[:count].tolist(), *[END] * bool(ended)] for tokens, count, ended in zip(*decoded, strict=True)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return Models(tmp_path_factory.mktemp("qwen") / "saved")


@pytest.mark.parametrize("penalty", [1.0, 1.05, 1.3])
def test_greedy_answers_are_those_of_transformers(models, penalty):
    assert models.answers(penalty) == [models.published(number, penalty)[0] for number in range(len(PROMPTS))]


def test_a_penalty_changes_answers_whose_tokens_are_nearly_tied(models):
    assert models.answers(1.05) != models.answers(1.0)


def test_logits_of_every_decoded_token_are_those_of_transformers(models):
    lengths = jnp.array(list(map(len, PROMPTS)))
    state, hidden = jax.jit(models.backbone.prefill)(models.parameters, models.arrays, lengths)
    found = [models.backbone.logits_at(models.parameters, hidden, lengths - 1)]
    published = [models.published(number, 1.3) for number in range(len(PROMPTS))]
    steps = min(len(tokens) for tokens, _ in published)
    decode = jax.jit(models.backbone.decode)
    for step in range(steps - 1):
        state, logits = decode(models.parameters, state, jnp.array([tokens[step] for tokens, _ in published]))
        found.append(logits)
    assert steps > 1
    assert_close(np.stack(found, 1), np.stack([logits[:steps] for _, logits in published]), 1e-5)
