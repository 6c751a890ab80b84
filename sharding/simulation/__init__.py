"""A step in time: the simulator, timelines, idle time by cause and peak memory; `pages/` shows all of them."""
