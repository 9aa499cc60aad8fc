# Records have the fields of the public error records, one a line. Places move, so they are cut out.
kvcanary explain --json v-pool-shape-must-match-k-pool-shape | python3 -c '
import json, sys
for line in sys.stdin:
    data = json.loads(line)
    for field in ("filePath", "lineNumber", "sourceCode", "sourceCodeStart", "sourceCodeEnd"):
        assert field in data["record"]
        del data["record"][field]
    print(json.dumps(data, indent=1))'
