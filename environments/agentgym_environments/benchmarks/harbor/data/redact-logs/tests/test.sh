#!/bin/bash
# The tested programs run as another user, who must not read this folder.
chmod -R go-rwx /tests
if python3 -I -S /tests/checks; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
