#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [DEMO OPTIONS]: runs the demo under the shim, prints the report, and ends with a line like
#     symmetric: all_gather 96/96, reduce_scatter 48/48 (simulated GPU)
# Exit status 1 when a result was wrong or a call went plain.
set -eu
build=$1
shift
here=$(dirname "$0")
audit=$(mktemp -d)
trap 'rm -rf "$audit"' EXIT

LD_LIBRARY_PATH=$(sh "$here/libs.sh" "$build")
export LD_LIBRARY_PATH
gpu='real GPUs'
[ "$LD_LIBRARY_PATH" != "$build/tests/sim" ] || gpu='simulated GPU'

"$build/tools/symmshim" run --policy "$here/demo.conf" --audit "$audit/rank%r.%p.jsonl" -- \
    "$build/tools/demo/symmshim-demo" "$@"
unset LD_LIBRARY_PATH
status=0
"$build/tools/symmshim" report --require 'all_gather>=100' --require 'reduce_scatter>=100' "$audit"/*.jsonl || status=1
"$build/tools/symmshim" report --json "$audit"/*.jsonl | python3 -c '
import json, sys
ops = json.load(sys.stdin)["ops"]
words = ["%s %d/%d" % (op, ops[op]["symmetric_calls"], ops[op]["calls"]) for op in ("all_gather", "reduce_scatter")]
print("symmetric: %s (%s)" % (", ".join(words), sys.argv[1]))' "$gpu"
exit "$status"
