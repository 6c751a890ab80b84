"""The runtime of a plan: submeshes, stage programs, hops between stages, and the executor that follows a schedule."""
