"""Randomized faults over runs of several local processes, and whether every run still ends as an undisturbed one."""
