"""The metrics of a run: times, throughput, MFU and losses, on the terminal and in files."""
