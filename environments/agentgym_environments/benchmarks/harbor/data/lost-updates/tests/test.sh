#!/bin/bash
# The tested programs run as another user, who must not read this folder.
chmod -R go-rwx /tests
passed=0
if python3 -I -S /tests/checks; then passed=1; fi
echo "{\"reward\": $passed, \"tests\": 1}" > /logs/verifier/reward.json
