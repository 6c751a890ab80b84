"""Name rules of decoders with experts."""
