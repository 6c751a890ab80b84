"""The order in which a step runs: ops, their dependencies, and one file a family of schedules.

`named/registry.py` names every schedule that a plan may ask for. A new order of the same ops is a function for the
order and one for its least in-flight limits, passed to `register_schedule`; no file here changes
(docs/how_to/extending.md). A schedule with new ops needs more: a zero-bubble schedule separates dgrad and wgrad, so it
also needs a wgrad kind of op (`ops.OpKind`), a wgrad program of each stage and a method of the executor
(`sharding/runtime`), and its costs (`sharding/costs`).
"""
