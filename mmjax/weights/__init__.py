"""Published weights: reading and writing safetensors, and taking a model's parameters from them and back."""
