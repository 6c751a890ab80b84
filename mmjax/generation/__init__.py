"""Generation by trained models on one device, whatever plan trained them: text by decoding, images by diffusion."""
