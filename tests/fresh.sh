#!/usr/bin/env bash
# The README's two commands on a bare machine, in a container: Debian with Python 3.11, venv, make and git, and nothing
# else. `make fresh` runs this on what is committed; the tests that missed a system package are listed in
# .fresh/skipped.txt, for `make test-skipped`.
set -euo pipefail
cd "$(dirname "$0")/.."

docker build --quiet --network host --tag agentgym-fresh - <<'DOCKERFILE'
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
DOCKERFILE

rm -rf .fresh
mkdir -p .fresh
clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
git clone --quiet --bare . "$clone/agentgym.git"

# pip looks for packages where it does on this machine; a folder of wheels is mounted at its own path.
options=(--volume "$clone/agentgym.git:/agentgym.git:ro" --volume "$PWD/.fresh:/results")
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS; do
  value=${!name:-}
  [ -z "$value" ] || options+=(--env "$name=$value")
  [ ! -d "$value" ] || options+=(--volume "$value:$value:ro")
done

docker run --rm --init --network host --shm-size 1g "${options[@]}" agentgym-fresh bash -euc '
  git -c safe.directory="*" clone --quiet /agentgym.git /root/agentgym
  cd /root/agentgym
  echo "== make quickstart"; make quickstart
  echo "== make test"; SKIPPED_LIST=/results/skipped.txt make test
'
