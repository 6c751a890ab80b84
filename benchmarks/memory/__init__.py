"""Bytes of a plan's stages as the planner counts them, beside what XLA allocates for their programs on H100s."""
