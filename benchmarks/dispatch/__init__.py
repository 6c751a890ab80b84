"""What post-balancing of every phase gains on OrchMLLM's models, simulated."""
