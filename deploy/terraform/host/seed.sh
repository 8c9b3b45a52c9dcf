#!/bin/bash
# Placeholder until the script is merged.
exit 0
