#!/bin/bash
# Runs as root when a host is stopped, deleted or preempted (metadata key shutdown-script): stops the agent, so that the
# run saves while the network still works. Google waits 30 seconds after a preemption and about 90 after a stop, then
# turns the machine off. A run that has not saved by then continues from its last checkpoint.
set -euo pipefail

command -v docker >/dev/null || exit 0
echo 'maskwright: the host is shutting down: requesting that the job saves'
docker stop -t 300 maskwright-agent >/dev/null 2>&1 || true
