#!/usr/bin/env bash
# The contract suite on this host: every backend that works here, CUDA memory included, on two GPUs.
#   tests/gpu/contract.sh OUT [pytest arguments]     for example: -k cuda
# Leaves OUT/contract.xml and OUT/contract.txt; backends that cannot work here are skipped by name.
set -uo pipefail
out=$(realpath -m "${1:?where the results go}")
shift
cd "$(dirname "$0")/../.." || exit 2
mkdir -p "$out"
metadata=$(mktemp -d)
trap 'rm -rf "$metadata"' EXIT
python=${PYTHON:-python3}
"$python" -m tests.gpu.entry_points "$metadata" >/dev/null || exit 2
export PYTHONPATH="coordinator:backends:connectors:.:$metadata${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m pytest tests/contract -q -rs -p no:cacheprovider --junitxml "$out/contract.xml" "$@" 2>&1 |
  tee "$out/contract.txt"
