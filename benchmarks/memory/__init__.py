"""What a plan's stages hold as the planner counts it, beside what XLA allocates for their programs on H100s."""
