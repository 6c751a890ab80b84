"""Images, clips and sound: decoding, patches, tiles and mel spectrograms."""
