"""Output of a timeline: its page, its notebook fragment, their tables and drawings, and its trace for Perfetto."""
