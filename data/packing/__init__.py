"""From samples to global batches: which samples form a step, packed rows, batches and their iterator."""
