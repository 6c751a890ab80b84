"""Tilings: how an input image becomes images for a vision encoder, and the size rules of published ones."""
