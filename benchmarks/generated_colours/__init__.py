"""Whether the pictures that a trained model generates have the colour and shape asked for."""
