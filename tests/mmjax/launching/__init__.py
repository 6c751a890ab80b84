"""Tests of starting and supervising the processes of a run on this host."""
