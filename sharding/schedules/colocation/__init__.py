"""Encoders computed in the idle time of a backbone on the same devices (Optimus, arXiv 2408.03505, section 4).

`colocated.py` is the schedule that a plan can name. It chooses among orders that `colocated_step.py` makes: of which
units are the backbone and its encoders (`colocated_units.py`), when the backbone alone would run
(`backbone_timeline.py`), where its encoders then fit (`sharding/schedules/bubbles/`), and in `waves.py` of generators
that run all at once. `pass_order.py` and `whole_schedule.py` make a schedule of that. `colocated_replicas.py` decides
for a planner which pipeline replica takes which microbatch, and `bubble_use.py` says how much of the encoders' work a
schedule hides.
"""
