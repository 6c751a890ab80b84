"""Tiny tokenizers of the kinds that published models have, trained in a moment."""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from data.text.hugging_face_tokenizer import HuggingFaceTokenizer, SpecialTokenNames

SENTENCES = [
    "A chat between a curious user and an assistant.",
    "What is in the picture? The picture shows a red flower and a house in China.",
    "He was not an ill disposed young man, unless to be rather cold hearted is to be ill disposed.",
]
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
MEDIA_TOKENS = ["<image>", "<audio>", "<generate>", "<img>", "</img>"]
NAMES = SpecialTokenNames(
    pad="<|endoftext|>",
    eos="<|im_end|>",
    bos="<|begin_of_text|>",
    image="<image>",
    audio="<audio>",
    generate="<generate>",
    image_start="<img>",
    image_end="</img>",
)


def byte_level_bpe() -> tokenizers.Tokenizer:
    """As of Llama 3 and Qwen: BPE over bytes, nothing unknown."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[*CHATML_TOKENS, *LLAMA3_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(SENTENCES, trainer)
    # Added, but not marked as special: files in the wild do this.
    model.add_tokens(MEDIA_TOKENS)
    # What a file may ask for and a pipeline must not get.
    model.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", model.token_to_id("<|begin_of_text|>"))]
    )
    model.enable_truncation(8)
    model.enable_padding(length=16, pad_id=0)
    return model


def sentence_piece_bpe(texts: Sequence[str] = SENTENCES) -> tokenizers.Tokenizer:
    """As of Llama 2: BPE over characters behind a space that is put before every text."""
    model = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    model.train_from_iterator(texts, trainer)
    model.add_special_tokens(["<image>"])
    return model


def metaspace_bpe(scheme: str, texts: Sequence[str] = SENTENCES) -> tokenizers.Tokenizer:
    """As of Llama without `legacy`, where the scheme is `first`: BPE over words that each begin with a space."""
    model = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    model.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    model.train_from_iterator(texts, trainer)
    model.add_special_tokens(["<image>"])
    return model


def prefixed_bytes_bpe() -> tokenizers.Tokenizer:
    """As of RoBERTa: BPE over bytes, with a space before every text."""
    model = byte_level_bpe()
    model.no_truncation()
    model.no_padding()
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    model.add_special_tokens(["<image>", "<s>", "</s>"])
    return model


def unigram() -> tokenizers.Tokenizer:
    """As of T5: its vocabulary holds the special tokens as words of the best score, not marked as special."""
    words = [("<unk>", 0.0), ("</s>", 0.0), ("<pad>", 0.0), *((letter, -3.0) for letter in "▁<>/spadbc")]
    model = tokenizers.Tokenizer(models.Unigram(words, 0, False))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    return model


def tiny() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(byte_level_bpe().to_str(), NAMES)
