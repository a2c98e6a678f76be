#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench.sh BUILD OUT: measures on two GPUs, with a build folder that may have been made elsewhere, in at most 200 s:
#   OUT/bench.json, bench.svg   symmshim bench with the built-in policy
#   OUT/tuned.conf              symmshim tune
#   OUT/tuned.json, tuned.svg   symmshim bench with that policy, if there is time left
# and OUT/NAME.err with what each of them said. Without two GPUs it rehearses on simulated ones, with small calls.
#
# NVLink multicast stays off, since on shared hosts it can disturb others.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
libs=$(sh "$here/../../tools/demo/libs.sh" "$build") || exit 1
tool=$build/tools/symmshim
status=0

unset SYMMSHIM_POLICY
export HOME="$out" # no policy of the user's
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
common="--ranks 2 --libs $libs --timeout 30"
bench_sizes='--min-bytes 8K --max-bytes 128M'
tune_sizes='--min-bytes 2M --max-bytes 128M'
if [ "$libs" = "$build/tests/sim" ]; then
    bench_sizes='--min-bytes 8K --max-bytes 32K --rounds 3'
    tune_sizes='--min-bytes 8K --max-bytes 32K --rounds 3'
fi
start=$(date +%s)

# timed SECONDS NAME OUTPUT COMMAND...
timed() {
    limit=$1 name=$2 output=$3
    shift 3
    before=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$output" 2>"$out/$name.err" || {
        echo "bench.sh: $name: status $? (124: after $limit s)" >&2
        status=1
    }
    cat "$out/$name.err" >&2
    echo "bench.sh: $name took $(($(date +%s) - before)) s"
}

# shellcheck disable=SC2086 # lists of words
{
    timed 90 bench bench.json "$tool" bench $common $bench_sizes --json --plot "$out/bench.svg"
    timed 75 tune tuned.conf "$tool" tune $common $tune_sizes
    if [ -s "$out/tuned.conf" ] && [ $(($(date +%s) - start)) -lt 145 ]; then
        timed 50 tuned tuned.json "$tool" bench $common $tune_sizes --json --policy "$out/tuned.conf" \
            --plot "$out/tuned.svg"
    fi
}
echo "bench.sh: $(($(date +%s) - start)) s in all"
exit "$status"
