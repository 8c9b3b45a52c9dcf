#!/bin/bash
# Runs as root when a host is stopped, deleted or preempted (metadata key shutdown-script): the agent is told to end, so
# that the run saves while the network is still there. Google waits 30 seconds after a preemption and about 90 after a
# stop, then turns the machine off: what ends later than that is lost since the last checkpoint.
set -euo pipefail

command -v docker >/dev/null || exit 0
echo 'maskwright: the host is going down: the job is told to save'
docker stop -t 300 maskwright-agent >/dev/null 2>&1 || true
