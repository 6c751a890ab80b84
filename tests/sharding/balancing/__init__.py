"""Tests of sharding/balancing."""
