"""Whether the collectives of fully sharded layers overlap with matmuls on H100s."""
