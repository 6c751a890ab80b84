"""Groups of samples that fill a capacity in every modality, and steps of groups that are alike (OmniBal)."""
