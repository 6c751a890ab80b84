"""What a step does in time: the simulator, timelines, idle time by cause, peak memory, and drawings of all that."""
