"""The model as modules made of pieces: what comes before the layers, the stack of equal layers, what comes after."""

import dataclasses
from collections.abc import Callable

from flax import nnx

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from mmjax.models.audio import FrameEmbedding
from mmjax.models.backbone import BackboneBlock, LanguageHead, TokenEmbedding
from mmjax.models.encoder import EncoderBlock, EncoderNorm
from mmjax.models.generator import DiffusionLoss
from mmjax.models.projector import ConditionProjector, MergeProjector
from mmjax.models.vision import PatchEmbedding

# What comes before the blocks of an encoder, by the type of its configuration; the rest is the same for all.
_EMBEDDINGS = {VisionConfig: PatchEmbedding, AudioConfig: FrameEmbedding}


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a module that one pipeline stage holds whole, or a stack of equal layers cut anywhere.

    Attributes:
        name: Unique within its module.
        owner: The part a user trains or freezes by name, such as `vision` or `vision_projector`.
        build: Makes the Flax module (of one layer, for a stack).
        layers: Number of layers of a stack; None for a single piece.
        prepare: For a stack, what its layers share, computed once a stage from the batch.
        borrows: Parameters owned by another piece: (path here, piece there, path there).
    """

    name: str
    owner: str
    build: Callable[[], nnx.Module]
    layers: int | None = None
    prepare: Callable | None = None
    borrows: tuple[tuple[str, str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's pieces in order, the modules whose outputs its first piece takes, and whether its last has a loss."""

    name: str
    pieces: tuple[Piece, ...]
    inputs: tuple[str, ...] = ()
    has_loss: bool = False


def model_modules(config: ModelConfig) -> tuple[Module, ...]:
    """Encoders, backbone, generators: topological order."""
    return (*_encoders(config), _backbone(config), *_generators(config))


def _encoders(config: ModelConfig) -> list[Module]:
    def encoder(of):
        return Module(
            of.name,
            (
                Piece("embed", of.name, lambda: _EMBEDDINGS[type(of)](of)),
                Piece(
                    "blocks",
                    of.name,
                    lambda: EncoderBlock(of),
                    layers=of.depth,
                    prepare=lambda batch: EncoderBlock.prepare(of, batch),
                ),
                Piece("norm", of.name, lambda: EncoderNorm(of)),
                Piece(
                    "projector",
                    f"{of.name}_projector",
                    lambda: MergeProjector(of, config.backbone),
                ),
            ),
        )

    return [encoder(each) for each in config.encoders]


def _backbone(config: ModelConfig) -> Module:
    of = config.backbone
    tied = (("embedding", "embed", "embedding"),) if of.tie_embeddings else ()
    return Module(
        of.name,
        (
            Piece("embed", of.name, lambda: TokenEmbedding(config)),
            Piece(
                "blocks",
                of.name,
                lambda: BackboneBlock(of),
                layers=of.depth,
                prepare=lambda batch: BackboneBlock.prepare(of, batch),
            ),
            Piece("head", of.name, lambda: LanguageHead(config), borrows=tied),
        ),
        inputs=tuple(encoder.name for encoder in config.encoders),
        has_loss=True,
    )


def _generators(config: ModelConfig) -> list[Module]:
    def generator(of):
        return Module(
            of.name,
            (
                Piece(
                    "projector",
                    f"{of.name}_projector",
                    lambda: ConditionProjector(of, config.backbone),
                ),
                Piece("unet", of.name, lambda: DiffusionLoss(of)),
            ),
            inputs=(config.backbone.name,),
            has_loss=True,
        )

    return [generator(each) for each in config.generators]
