"""Encoders in the bubbles of a backbone (Optimus, arXiv 2408.03505, sections 4.2 to 4.4), by seconds alone.

`idle_intervals.py` knows when devices idle, `bundling.py` which ops of the backbone take a slice of an encoder into
their program, `placement.py` when the slices of some pipeline replicas run, `filling.py` when all do, and
`assignment.py` which pipeline replica takes which microbatch. What makes a schedule of that is
`sharding/schedules/colocation/colocated_step.py`.
"""
