"""How fast and how level the balancing of data is, compared with the papers' algorithms."""
