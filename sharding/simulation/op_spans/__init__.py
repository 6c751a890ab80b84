"""When every op of a schedule starts and ends: spans, those of a wait graph, seconds of ops and of bundles."""
