"""Process 0 of two waits for the other, which is busy elsewhere; run by test_coordination. Prints the error."""

import sys

import jax

from configs.common.errors import PROCESS_LOST
from sharding.runtime.coordination import MissingProcessError, wait_for_processes

if __name__ == "__main__":
    rank, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    wait_for_processes("the first meeting")
    if rank == 0:
        try:
            wait_for_processes("the second meeting", patience=1)
        except MissingProcessError as error:
            assert error.exit_code == PROCESS_LOST  # a launcher tries again
            print(error)
    wait_for_processes("the end")
    jax.distributed.shutdown()
