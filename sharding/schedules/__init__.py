"""The order in which a step runs: ops, their dependencies, and one file a family of schedules.

`named/registry.py` names every schedule that a plan may ask for. A new order of the same ops is a function for the
order and one for its least in-flight limits, passed to `register_schedule`; no file here changes
(docs/how_to/extending.md). One that runs gradients of weights apart, as zero-bubble schedules do, is registered with
`splits_backward=True`. A schedule with new kinds of ops needs more: the kind (`ops.OpKind`), a program of each stage
and a method of the executor (`sharding/runtime`), and its costs (`sharding/costs`).
"""
