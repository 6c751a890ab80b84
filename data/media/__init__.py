"""Images and audio: decoding, patches, tiles and mel spectrograms."""
