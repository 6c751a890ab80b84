"""From samples to rows: the order in which samples are read, which samples share a row, and which are refused."""
