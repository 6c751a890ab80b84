"""What a run reports: times, throughput, MFU, losses; on the terminal and in files."""
