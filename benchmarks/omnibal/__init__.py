"""Gains of balancing data, stages and memory on OmniBal's models, simulated."""
