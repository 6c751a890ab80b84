"""What published models with one vision encoder and a decoder share."""

from configs.architectures import ModelConfig, VisionConfig

PIXEL_FIELDS = ("pixel_mean", "pixel_std")
"""Fields of an encoder that preprocessor_config.json describes, and not config.json."""


def require_vision_language_model(model: ModelConfig) -> VisionConfig:
    """The encoder of a model that consists of one vision encoder and a backbone.

    Raises:
        ValueError: The model has other modules.
    """
    if len(model.encoders) != 1 or model.generators or not isinstance(model.encoders[0], VisionConfig):
        raise ValueError("it does not consist of one vision encoder and a backbone")
    return model.encoders[0]
