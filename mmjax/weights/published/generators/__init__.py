"""Published U-Nets and autoencoders of diffusion models."""
