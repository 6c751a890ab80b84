"""What balancing data, stages and memory gains on OmniBal's models, simulated."""
