"""The order of a run's ops computed anew from their measured seconds, and swapped between steps."""
