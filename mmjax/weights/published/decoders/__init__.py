"""Published decoders: the backbone's part of a model."""
