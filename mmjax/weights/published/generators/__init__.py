"""Published U-Nets, diffusion transformers and autoencoders of diffusion models."""
