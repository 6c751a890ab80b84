"""Published vision encoders: one file per architecture."""
