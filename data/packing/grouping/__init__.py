"""Grouping policies: which samples share a row, and which rows form a step (OmniBal, arXiv 2407.20761)."""
