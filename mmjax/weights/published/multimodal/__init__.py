"""Published multimodal models: an encoder, a projector and a decoder in one checkpoint."""
