"""The model as modules in topological order, each built from its configuration."""

from configs.architectures import ModelConfig
from mmjax.models import audio, vision  # noqa: F401  register their encoders
from mmjax.models.backbone import BackboneBlock, LanguageHead, TokenEmbedding
from mmjax.models.encoder import encoder_module
from mmjax.models.experts import ExpertBlock
from mmjax.models.generator import generator_module
from mmjax.models.lora import adapted
from mmjax.models.module import Module, Piece
from mmjax.models.transformer import block_stack


def model_modules(config: ModelConfig) -> tuple[Module, ...]:
    """Encoders, backbone, generators: topological order."""
    encoders = (encoder_module(encoder, config) for encoder in config.encoders)
    generators = (generator_module(generator, config.backbone) for generator in config.generators)
    modules = (*encoders, _backbone(config), *generators)
    for lora in config.lora:
        modules = tuple(adapted(module, lora) for module in modules)
    return modules


def _backbone(config: ModelConfig) -> Module:
    of = config.backbone
    tied = (("embedding", "embed", "embedding"),) if of.tie_embeddings else ()
    block = ExpertBlock if of.experts else BackboneBlock
    return Module(
        of.name,
        (
            Piece("embed", of.name, lambda: TokenEmbedding(config), by_position=True),
            block_stack(of, block),
            Piece("head", of.name, lambda: LanguageHead(config), borrows=tied, by_position=True),
        ),
        inputs=tuple(encoder.name for encoder in config.encoders),
    )
