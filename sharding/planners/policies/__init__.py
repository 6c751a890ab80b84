"""Policies of planning, and the choice between their plans by simulation.

- Functions from `PlanningProblem` to plans: `rigid.py` (two policies), `disaggregated.py` (two), `balanced.py`,
  `fully_sharded.py`, `colocated.py`.
- The best plan of one policy: `best_plan.py`.
- The choice: `auto.py`, which also runs registered policies of a user's own; what it is compared with, on these devices
  and on fewer: `policy_comparison.py`.
"""
