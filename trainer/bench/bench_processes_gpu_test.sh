#!/bin/bash
# The benchmark over NCCL, as two processes that look like nodes with one GPU each: rank 0 alone reports, and for both. Sockets between them are no
# measure of anything, so figures are only asked whether they are there and can be.
set -euo pipefail

readonly launcher="${PWD}/ci/nodes_of_one_gpu"
readonly program="${PWD}/trainer/zero_train"
cd "${TEST_TMPDIR}"

status=0
# shellcheck disable=SC2016  # RANK is the process's own
"${launcher}" 2 bash -c 'exec "$@" >"stdout.${RANK}" 2>"stderr.${RANK}"' rank "${program}" --bench --engine=cuda --model=mlp:4x256 \
  --micro_batch_size=16 --bench_steps=5 --warmup_steps=2 --mode=replicated,full_shard/backward_pre || status=$?
for rank in 0 1; do
  sed "s/^/rank ${rank}: /" "stderr.${rank}"
done
if [[ "${status}" != 0 ]]; then
  echo "FAILED: exit status ${status}"
  exit 1
fi
if [[ -s stdout.1 ]]; then
  echo "FAILED: rank 1 prints to stdout: $(head -n 3 stdout.1)"
  exit 1
fi

python3 - <<'CHECK'
import json
import sys

failures = []


def expect(what, found, holds):
    if not holds:
        failures.append(f"{what}: {found!r}")


with open("stdout.0", encoding="utf-8") as file:
    report = json.load(file)  # one document and nothing else
for key, value in {"schema": "shardproof.bench/1", "engine": "cuda", "world_size": 2, "processes": 2, "warmup_steps": 2, "bench_steps": 5}.items():
    expect(key, report[key], report[key] == value)
rows = [(mode["mode"], mode["prefetch"]) for mode in report["modes"]]
expect("modes", rows, rows == [("replicated", None), ("full_shard", "backward_pre")])
for mode in report["modes"]:
    name = mode["mode"]
    expect(f"{name}: samples", mode["samples"], mode["samples"] == 5)
    expect(f"{name}: median_ms", mode["median_ms"], mode["median_ms"] > 0)
    expect(f"{name}: floor_gemms", mode["floor_gemms"], mode["floor_gemms"] == 11)
    expect(f"{name}: ratio_to_floor", mode["ratio_to_floor"], mode["ratio_to_floor"]["median"] > 0)
    exposed = mode["exposed_communication_ms"]
    missing = mode["exposed_communication_missing"]
    expect(f"{name}: exposed_communication_ms", (exposed, missing), exposed is not None and exposed > 0 and missing is None)
    watched = mode["exposed_communication_samples"]
    expect(f"{name}: exposed_communication_samples", watched, watched == report["witness_steps"] > 0)
    bus = mode["unavoidable"]["bus_gb_per_s"]
    expect(f"{name}: bus_gb_per_s", bus, bus is not None and bus["median"] > 0)
    expect(f"{name}: bus_bytes", mode["unavoidable"]["bus_bytes"], mode["unavoidable"]["bus_bytes"] > 0)
    ranks = [memory["rank"] for memory in mode["memory"]]
    expect(f"{name}: ranks with memory", ranks, ranks == [0, 1])
    for memory in mode["memory"]:
        sizes = (memory["steady_mib"], memory["peak_mib"], memory["arena_mib"])
        expect(f"{name}: steady, peak and arena of rank {memory['rank']}", sizes, 0 < sizes[0] <= sizes[1] <= sizes[2])
if len(report["modes"]) == 2:
    # Half of the state on each of two ranks.
    whole, half = (mode["memory"][0]["steady_mib"] for mode in report["modes"])
    expect("steady MiB of replicated over that of full_shard", whole / half, 1.5 < whole / half < 2.5)
for failure in failures:
    print("FAILED:", failure)
sys.exit(bool(failures))
CHECK
echo "0 failures"
