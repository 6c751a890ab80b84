"""Devices of modules: plans, their JSON, the graph of pipeline stages, groups of devices, and which parts train."""
