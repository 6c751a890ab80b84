"""Generators of images: U-Nets, diffusion transformers, autoencoders, noise schedules and samplers."""
