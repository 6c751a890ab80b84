"""The heartbeat of a run of several processes, by which they notice lost, frozen, failed or diverging processes."""
