"""What is concluded from the error that ends a process."""

import errno

import jax
import pytest

from configs.common.errors import UserError
from mmjax.training.heartbeat.final_errors import final_exit_code, may_come_from_another
from mmjax.training.start_checks.checks import DeviceCheckError, OtherDeviceCheckError


def test_an_error_of_a_collective_may_come_from_another_process():
    broken = jax.errors.JaxRuntimeError("UNAVAILABLE: Gloo all-reduce failed: Connection closed by peer")
    assert may_come_from_another(broken)
    wrapped = UserError("the step failed")
    wrapped.__cause__ = broken
    assert may_come_from_another(wrapped)


@pytest.mark.parametrize("kind", ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED"])
def test_errors_of_one_process_alone_come_from_no_other(kind):
    error = jax.errors.JaxRuntimeError(f"{kind}: Out of memory allocating 274877906944 bytes.")
    assert not may_come_from_another(error)
    assert not may_come_from_another(ValueError("of the user's module"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("a flag"), 2),
        (DeviceCheckError("a device"), 69),
        (OtherDeviceCheckError("a device of another process"), 75),
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 2),
        (OSError("no file"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (SystemExit("a message"), 1),
        (KeyError("a bug"), 1),
    ],
)
def test_an_error_has_the_exit_code_that_it_has_in_a_run_of_one_process(error, code):
    assert final_exit_code(error) == code
