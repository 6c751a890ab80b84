"""The order in which a step runs: ops, their dependencies, and one file a family of schedules.

`build.py` names every schedule that a plan may ask for. A new one (zero-bubble, bubble filling for colocated units) is
a file beside `one_f_one_b.py` with an order and in-flight limits, and an entry of `build.SCHEDULE_POLICIES`.
"""
