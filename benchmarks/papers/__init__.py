"""The tables and figures of four papers beside what is simulated, or measured on this machine."""
