"""Starting and supervising the processes of a run on this host; nothing here imports jax.

The command `mmjax.launch` calls `supervisor.supervise`; each start of the run is a `LocalProcesses`.
"""
