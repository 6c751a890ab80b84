"""Planners: from a planning problem to plans.

- The problem: `problem.py`.
- Policies, each a function from `PlanningProblem` to plans, and the choice between them by simulation: `policies/`.
- What `disaggregated` searches with, in this order: `tables/` (every candidate of a module, with its recomputation
  policy, and how replicas share the items of a microbatch), `layouts/` (lower bounds, the best integer layouts, which
  of them are worth simulating, their devices, and what their schedules need).
- What `balanced` searches with: `chain_problem.py` (the layouts of a chain), `stages/` (its layers as arrays, exact
  partitions of them, and the recomputation of each layer).
- What `fsdp` searches with: `capacities.py` (of rows of its own), `module_recompute.py`.
- The error where nothing fits: `infeasible.py`.
- The numbers of rows with which a plan's sizes would use more devices: `fuller_layouts.py`.

A new policy is a function from `PlanningProblem` to plans, passed to `policies.auto.register_policy`; no file here
changes (docs/how_to/extending.md). Where its plans say something new (fully sharded units), `UnitPlan`, its JSON, the
costs and the runtime need that field too.
"""
