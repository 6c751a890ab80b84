"""The preprocessing service: producers on hosts without accelerators make batches for trainers (Arrow Flight)."""
