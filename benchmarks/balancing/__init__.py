"""How fast and how level the balancing of data is, beside the papers' algorithms."""
