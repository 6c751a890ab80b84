"""Encoders in the bubbles of a backbone on the same devices (Optimus, arXiv 2408.03505, sections 4.2 to 4.4).

`roles.py` says which unit is the backbone and which are encoders, `backbone_timeline.py` when the backbone alone would
run, `idle_intervals.py` where its devices idle, `placement.py` and `filling.py` when the encoders run there,
`bundling.py` which of their ops run in one program with one of the backbone's, `assignment.py` which copy of an
encoder takes which microbatch. `ordering.py` and `whole_schedule.py` make a schedule of all that, `step.py` holds the
orders to choose from, and `efficiency.py` says how much of the encoders' work is hidden.
"""
