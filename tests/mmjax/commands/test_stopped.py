"""Commands that are stopped by Ctrl-C tell what they have found so far, marked as a part."""

import json
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def stopped_after(begins_with: str, *command: str) -> tuple[int, dict, str]:
    """Exit code, JSON document and stderr of a command that is sent SIGINT when its progress shows such a line."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith(begins_with):
                process.send_signal(signal.SIGINT)
                break
        said += process.stderr.read()
        output = process.stdout.read()
    return process.returncode, json.loads(output), said


def test_a_plan_that_is_stopped_has_the_policies_compared_so_far_and_is_not_written(tmp_path):
    kept = tmp_path / "plan.json"
    line = ("--gin_file=models/mllm_9b.gin", "--devices=24", "--batch_rows=24", "--json", f"--output={kept}")
    code, report, said = stopped_after("comparing 2 of", "mmjax.plan", *line)
    assert code == 130 and "Traceback" not in said
    assert report["stopped"] and len(report["policies"]) >= 2 and report["on_fewer_devices"] == []
    assert report["choice"] in {entry["policy"] for entry in report["policies"]}
    assert not kept.exists()


def test_a_verification_that_is_stopped_has_the_layouts_compared_so_far_and_is_not_ok():
    line = ("--gin_file=tiny.gin", "--steps=1", "--json")
    code, report, said = stopped_after("verifying 1 of", "mmjax.verify", *line)
    assert code == 130 and "Traceback" not in said
    assert report["stopped"] and not report["ok"] and len(report["layouts"]) >= 1
    assert f"stopped: {len(report['layouts'])} of " in said
