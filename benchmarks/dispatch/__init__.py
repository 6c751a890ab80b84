"""Gains of post-balancing every phase on OrchMLLM's models, simulated."""
