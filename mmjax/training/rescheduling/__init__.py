"""Rescheduling: the order of a run's ops is computed anew from their measured seconds, and swapped between steps."""
