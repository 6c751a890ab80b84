"""Architectures of modules as frozen dataclasses: encoders, projectors, backbones, generators, and their parts."""
