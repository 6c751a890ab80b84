"""The order in which a step runs: ops, their dependencies, and one file a family of schedules.

`build.py` names every schedule that a plan may ask for. A new order of the same ops is a file in this folder with an
order and in-flight limits, an entry of `build.SCHEDULE_POLICIES`, and a name in `sharding.plans.plan.ScheduleName`. A
schedule with new ops needs more: a zero-bubble schedule separates dgrad and wgrad, so it also needs a wgrad kind of op
(`ops.OpKind`), a wgrad program of each stage and a method of the executor (`sharding/runtime`), and its costs
(`sharding/costs`).
"""
