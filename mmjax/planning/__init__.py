"""From a configuration to plans of it, and their reports."""
