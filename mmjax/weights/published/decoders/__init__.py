"""Published decoders: the architectures of backbones."""
