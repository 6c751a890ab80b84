"""Checks before the first step: that the devices compute correctly, and that all processes run the same program."""
