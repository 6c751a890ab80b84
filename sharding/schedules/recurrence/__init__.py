"""The recurrence of a schedule: when every op starts and ends on every replica, given what each takes.

An op starts once its devices have run the ops before it and its inputs have arrived. `node_builder.py` says which nodes
the ops of a schedule have (`schedule_nodes.py`) and what they wait for, by `shared_devices.py`, `bundle_parts.py` and
`wait_tables.py`; `graph_builder.py` makes arrays of that, and `wait_graph.py` computes on them. Simulated, measured and
reordered steps differ only in the seconds that they give.
"""
