"""What a unit of each modality costs a model: by it, padding of unlike units can be added up."""

import numpy as np

from configs.architectures import ModelConfig
from data.formats import SampleFormat
from sharding.specs import module_graph


def unit_work(model: ModelConfig, form: SampleFormat) -> dict[str, float]:
    """FLOPs of a forward pass for one token, patch, mel frame and image to draw, of what the model has modules for.

    Attention is left out: it depends on lengths, and padding costs it little.
    """
    graph = module_graph(model)
    token, item = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0])
    work = {"tokens": float(graph.backbone.forward_flops(token))}
    for field, stream in form.streams.items():
        work[field] = float(graph[stream.module].forward_flops(token)) / stream.stride
    if form.drawing:
        work["images"] = float(graph[form.drawing.module].forward_flops(item))
    return work
