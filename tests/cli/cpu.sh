# The command lists what the machine has, so what is compared is what holds on every machine.
kvcanary cpu --json | python3 -c '
import json, sys
data = json.load(sys.stdin)
names = [variant["name"] for variant in data["variants"]]
assert names[-1] == "portable" and data["variants"][-1]["supported"]
assert [v["name"] for v in data["variants"] if v["chosen"]] == [data["chosen"]]
for variant in data["variants"]:
    assert set(variant["kernels"].values()) <= set(names)
print(data["variants"][-1]["kernels"]["rope_pool_fused"])'
kvcanary cpu | grep -c chosen
KVC_CPU=portable kvcanary cpu | grep chosen
KVC_CPU=portable kvcanary cpu --json | grep -o '^{"chosen": "[a-z]*"'
KVC_CPU=abacus kvcanary cpu --json 2>/dev/null | grep -o '^{"chosen": [a-z]*'; echo "exit ${PIPESTATUS[0]}"
KVC_CPU=abacus kvcanary cpu >/dev/null 2>err; echo "exit $?"; sed 's/one of: .*/one of: .../' err
kvcanary cpu --jsom; echo "exit $?"
kvcanary cpu --help
