"""Name rules of decoders whose layers are all dense."""
