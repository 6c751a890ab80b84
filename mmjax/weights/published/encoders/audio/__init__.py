"""Published audio encoders: one file per architecture."""
