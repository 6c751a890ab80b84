"""What encoders read from a config.json without values, and what they write, without the published implementations."""

import dataclasses
import json

import pytest

from configs.architectures import AudioConfig, VisionConfig
from mmjax.weights import registry

ENCODERS = {
    model_type: published
    for published in registry.all_architectures()
    if published.config_type in (AudioConfig, VisionConfig)
    for model_type in published.model_types
}


@pytest.mark.parametrize("model_type", ENCODERS)
def test_what_is_written_of_an_encoder_is_read_back_equal(model_type):
    published = ENCODERS[model_type]
    config = published.read_config({"architecture": model_type})
    values = json.loads(json.dumps(published.write_config(config)))
    assert published.read_config(values) == config


@pytest.mark.parametrize("model_type", ENCODERS)
@pytest.mark.parametrize(("field", "value"), [("qk_norm", "head"), ("kv_heads", 1)])
def test_an_encoder_that_the_format_cannot_describe_is_refused_by_its_field(model_type, field, value):
    published = ENCODERS[model_type]
    config = dataclasses.replace(published.read_config({"architecture": model_type}), **{field: value})
    with pytest.raises(ValueError, match=field):
        published.write_config(config)
