"""From a configuration to planning problems, plans of every policy, and reports of them.

The commands `mmjax.plan`, `mmjax.simulate` and `mmjax.train` and the Python interface call it; the planners themselves
are in `sharding.planners`.
"""
