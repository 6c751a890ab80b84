"""Memory and permutes of pipelines on H100s, as one program and as dispatched programs."""
