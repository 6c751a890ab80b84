"""Trained models asked on one device, whatever plan trained them: text token by token, pictures by diffusion."""
