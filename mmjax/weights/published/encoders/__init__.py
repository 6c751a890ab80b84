"""Published vision and audio encoders."""
