"""Why devices are idle: by cause, on shared devices, and how much of it others fill."""
