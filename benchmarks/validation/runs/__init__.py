"""The published runs, by where they were measured; `all_runs.py` has all of them."""
