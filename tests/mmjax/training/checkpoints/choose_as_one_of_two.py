"""One of two processes that choose a checkpoint in each of several folders; run by test_choices_of_processes."""

import pathlib
import sys

import jax

from configs.common.errors import UserError
from mmjax.training.checkpoints.discovery import newest_whole_for_all

if __name__ == "__main__":
    rank, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    for folder in sys.argv[3:]:
        try:
            chosen = newest_whole_for_all(pathlib.Path(folder), None)
            print("CHOSEN", chosen.path.name, *chosen.passed_over, flush=True)
        except UserError as error:
            print("REFUSED", type(error).__name__, error, flush=True)
