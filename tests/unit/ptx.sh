#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ptx.sh FILE: the device code's PTX is what old drivers take, keeps its accesses in 16-byte vectors, and assembles
# for every architecture that the ptxas at hand knows (77, a skip, where there is no ptxas).
set -eu
ptx=$1

grep -q '^\.version 6\.' "$ptx" || { echo "PTX is newer than 6.x" >&2; exit 1; }
grep -q '^\.target sm_70' "$ptx" || { echo "PTX is not for sm_70" >&2; exit 1; }
for access in ld.global.v4 st.global.v4; do
    [ "$(grep -c "$access" "$ptx")" -ge 2 ] || { echo "a kernel has no $access" >&2; exit 1; }
done

ptxas=$(command -v ptxas || echo /usr/local/cuda/bin/ptxas)
[ -x "$ptxas" ] || { echo "no ptxas: not assembled" >&2; exit 77; }
assembled=0
for arch in 70 75 80 86 87 89 90 100 103 110 120 121; do
    "$ptxas" --help | grep -q "sm_$arch'" || continue
    "$ptxas" -arch="sm_$arch" "$ptx" -o /dev/null || exit 1
    assembled=$((assembled + 1))
done
echo "assembled for $assembled architectures"
[ "$assembled" -gt 0 ]
