"""The programs of a stage: forward and backward, what they save, its master weights, and how they are compiled."""
