#!/usr/bin/env bash
# Checks the Dockerfile and the jobs of examples/ by the linters of the extra `lint`: hadolint, shellcheck, and Kubernetes'
# own schemas. JobSet is an extension, so the Job that it makes is checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(mktemp -d)
trap 'rm -rf "$jobs"' EXIT

hadolint Dockerfile
shellcheck examples/slurm/*.sbatch .ci/run .ci/*.sh
python - "$jobs" examples/kubernetes/*.yaml <<'PYTHON'
import pathlib
import sys

import yaml

folder = pathlib.Path(sys.argv[1])
for path in map(pathlib.Path, sys.argv[2:]):
    for number, document in enumerate(yaml.safe_load_all(path.read_text())):
        if document["kind"] != "JobSet":
            made = [document]
        else:
            named = [(job["name"], job["template"]["spec"]) for job in document["spec"]["replicatedJobs"]]
            made = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": n}, "spec": s} for n, s in named]
        (folder / f"{path.stem}-{number}.yaml").write_text(yaml.safe_dump_all(made))
PYTHON
kubernetes-validate --strict "$jobs"/*.yaml
