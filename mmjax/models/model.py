"""The model as modules in topological order, each built from its configuration."""

from configs.architectures import ModelConfig
from mmjax.models.layers.experts import ExpertBlock
from mmjax.models.layers.lora import add_adapters
from mmjax.models.layers.transformer import block_stack
from mmjax.models.modalities import audio, vision  # noqa: F401  register their encoders
from mmjax.models.modalities.backbone import BackboneBlock, LanguageHead, TokenEmbedding
from mmjax.models.modalities.encoder import encoder_module
from mmjax.models.modalities.generator import generator_module
from mmjax.models.structure.module import Module, Piece


def model_modules(config: ModelConfig) -> tuple[Module, ...]:
    """Encoders, backbone, generators: topological order."""
    encoders = (encoder_module(encoder, config) for encoder in config.encoders)
    generators = (generator_module(generator, config.backbone) for generator in config.generators)
    modules = (*encoders, _backbone(config), *generators)
    for lora in config.lora:
        modules = tuple(add_adapters(module, lora) for module in modules)
    return modules


def _backbone(config: ModelConfig) -> Module:
    of = config.backbone
    tied = (("embedding", "embed", "embedding"),) if of.tie_embeddings else ()
    block = ExpertBlock if of.experts else BackboneBlock
    return Module(
        of.name,
        (
            Piece("embed", of.name, lambda: TokenEmbedding(config), sequence_parallel=True),
            block_stack(of, block),
            Piece("head", of.name, lambda: LanguageHead(config), tied_parameters=tied, sequence_parallel=True),
        ),
        inputs=tuple(encoder.name for encoder in config.encoders),
    )
