"""Plans at work: meshes, hops between them, stage programs, and the executor that follows a schedule."""
