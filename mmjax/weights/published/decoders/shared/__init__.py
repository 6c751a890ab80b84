"""Name rules and entries of config.json that several decoders have in common."""
