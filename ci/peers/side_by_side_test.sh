#!/bin/bash
# side_by_side on two programs that only pretend: who is first alternates, ratios are those of paired medians, and what goes wrong is one line.
set -euo pipefail

readonly side_by_side="${PWD}/ci/peers/side_by_side"
readonly peer_script="${PWD}/ci/peers/torch_peer.py"
cd "${TEST_TMPDIR}"
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "${peer_script}" || fail "torch_peer.py is no Python"

# Ours takes 6 ms in the first round and 12 in the second, the peer 3 and 6: each varies, the ratio does not.
cat >ours <<'SCRIPT'
#!/usr/bin/env python3
import json, os, sys
print("A", file=open("order", "a"))
print("ours", *sys.argv[1:], file=open("arguments", "a"))
rounds = sum(line == "A\n" for line in open("order"))
def mode(name, prefetch):
    return {"mode": name, "prefetch": prefetch, "median_ms": 6 * rounds, "ratio_to_floor": {"median": 1.5} if prefetch else None,
            "memory": [{"steady_mib": 10.0, "peak_mib": 20.0}, {"steady_mib": 11.0, "peak_mib": None}]}
print("words of a launcher")
print(json.dumps({"schema": os.environ.get("SCHEMA", "shardproof.bench/1"), "device": "a device", "versions": {},
                  "world_size": int(os.environ.get("RANKS", "2")),
                  "modes": [mode("replicated", None), mode("full_shard", "backward_pre")]}))
SCRIPT
cat >peer <<'SCRIPT'
#!/usr/bin/env python3
import json, os, sys
print("B", file=open("order", "a"))
print("peer", *sys.argv[1:], file=open("arguments", "a"))
if "FAIL" in os.environ: sys.exit(3)
rounds = sum(line == "B\n" for line in open("order"))
output = next(a for a in sys.argv if a.startswith("--output=")).split("=", 1)[1]
names = next(a for a in sys.argv if a.startswith("--modes=")).split("=", 1)[1].split(",")
json.dump({"schema": "shardproof.peer/1", "framework": "a framework", "world_size": int(os.environ.get("RANKS", "2")),
           "modes": [{"mode": n, "median_ms": 3 * rounds, "steady_mib": 30.0, "peak_mib": 40.0} for n in names]}, open(output, "w"))
SCRIPT
chmod +x ours peer

run() {
  rm -f order arguments
  status=0
  "${side_by_side}" --zero_train="${PWD}/ours" --peer="${PWD}/peer" --peer_launch=python3 --world_size=2 "$@" >stdout 2>stderr || status=$?
}
expect_error() {
  run "${@:3}"
  [[ "${status}" == "$1" ]] || fail "exit status ${status}, not $1: ${*:3}"
  grep -qF -- "$2" stderr || fail "no '$2' on stderr: ${*:3}"
  [[ "$(grep -c '^Traceback' stderr || true)" == 0 ]] || fail "a traceback: ${*:3}"
}

run --rounds=3 --peers=ddp
[[ "$(tr -d '\n' <order)" == ABBAAB ]] || fail "the order was $(tr -d '\n' <order)"

run --rounds=2 --peers=ddp,fsdp2_reshard --output=figures.json
[[ "${status}" == 0 ]] || fail "exit status ${status}: $(cat stderr)"
[[ "$(tr -d '\n' <order)" == ABBA ]] || fail "the order was $(tr -d '\n' <order)"
grep -qF -- '--mode=replicated,full_shard/backward_pre --model=mlp:8x2048 --world_size=2' arguments || fail "what ours was asked: $(cat arguments)"
grep -qF -- '--modes=ddp,fsdp2_reshard' arguments || fail "what the peer was asked: $(cat arguments)"
# Medians 9 and 4.5 over rounds vary by 47 %; the ratio is 2 in each.
grep -qF '| replicated | ddp | 9.000* | 4.500* | 2.000 | 0.00 | - | 11.0 | 30.0 | 20.0 | 40.0 |' stdout || fail "the table: $(cat stdout)"
grep -qF '| full_shard/backward_pre | fsdp2_reshard | 9.000* | 4.500* | 2.000 | 0.00 | 1.50 |' stdout || fail "the table: $(cat stdout)"
python3 - <<'CHECK' || fail "figures.json: $(cat figures.json)"
import json
report = json.load(open("figures.json"))
assert report["schema"] == "shardproof.side_by_side/1" and report["rounds"] == 2
assert report["peer"]["framework"] == "a framework" and report["ours"]["device"] == "a device"
ratio = report["pairs"][0]["ratio"]
assert ratio == {"median": 2.0, "cv": 0.0, "unstable": False}
assert report["pairs"][0]["ours_ms"]["unstable"]
assert all(pair["peer_shards"] for pair in report["pairs"])
CHECK

# At one rank FSDP1 shards nothing, and the row says so; elsewhere no row has a dagger.
! grep -q † stdout || fail "a dagger at two ranks: $(cat stdout)"
RANKS=1 run --rounds=1 --world_size=1 --peers=ddp,fsdp1_backward_pre,fsdp2_reshard --output=figures.json
[[ "${status}" == 0 ]] || fail "exit status ${status}: $(cat stderr)"
grep -qF '| full_shard/backward_pre | fsdp1_backward_pre † |' stdout || fail "no dagger: $(cat stdout)"
grep -qF '| full_shard/backward_pre | fsdp2_reshard |' stdout || fail "a dagger of FSDP2: $(cat stdout)"
[[ "$(grep -c '^†: .*NO_SHARD' stdout)" == 1 ]] || fail "no line says what the dagger means: $(cat stdout)"
python3 -c 'import json; assert [p["peer_shards"] for p in json.load(open("figures.json"))["pairs"]] == [True, False, True]' || fail "peer_shards: $(cat figures.json)"

FAIL=1 expect_error 1 "exit status 3"
SCHEMA=other/1 expect_error 1 "'other/1'"
expect_error 1 "on 2 ranks, not 4" --world_size=4
expect_error 2 "'zero9'" --peers=ddp,zero9
expect_error 2 "--rounds=0" --rounds=0
expect_error 2 "nowhere" --zero_train=./nowhere

echo "${failures} failures"
((failures == 0))
