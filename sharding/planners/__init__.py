"""Planners: from a planning problem to plans; one file per policy, and the search that policies share.

A new policy (colocated units, fully sharded units) is a file with a function from `PlanningProblem` to plans, and an
entry of `auto.PLANNING_POLICIES`.
"""
