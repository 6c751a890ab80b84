"""Runs a program in processes in which sets and dictionaries of strings have other orders."""

import os
import subprocess
import sys


def outputs_by_hash_seed(program: str) -> set[str]:
    """What a program prints under two seeds of hashes; one text if it does not depend on them."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
