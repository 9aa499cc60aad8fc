# The devices are the machine's, so what is compared is what holds on every machine.
CUDA_VISIBLE_DEVICES='' kvcanary cuda --json >out 2>err; echo "exit $?"
python3 -c '
import json
data = json.load(open("out"))
assert data["devices"] == [] and data["driver"] is None
print(sorted(data))'
grep -c 'no CUDA device can be used: .* \[cuda-unavailable\]' err
CUDA_VISIBLE_DEVICES='' kvcanary cuda 2>/dev/null | grep -c '^kernels built for  '
kvcanary cuda --jsom; echo "exit $?"
kvcanary cuda --help
