"""What a unit of each modality costs a model: by it, padding of unlike units can be added up."""

import numpy as np

from configs.architectures import ModelConfig
from data.samples.sample_format import SampleFormat
from sharding.specs.modules import module_graph


def flops_per_unit(model: ModelConfig, form: SampleFormat) -> dict[str, float]:
    """FLOPs of a forward pass for one token, patch, mel frame and image to draw, of what the model has modules for.

    Attention is left out: it depends on lengths, and padding costs it little.
    """
    graph = module_graph(model)
    token, item = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])
    work = {"tokens": float(graph.backbone.forward_flops(token))}
    for field, stream in form.encoder_formats.items():
        work[field] = float(graph[stream.module].forward_flops(token)) / stream.values_per_position
    if form.target_images:
        work["images"] = float(graph[form.target_images.module].forward_flops(item))
    return work
