"""Code that several published encoders have in common: entries of key tables, and rules of tensors."""
