#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [--only NAME,...]: the checks that need two real GPUs, with a build folder that may have been made
# elsewhere. Wants PyTorch with NCCL, and the job train.py beside this script. Writes RESULTS.md beside it.
#
# NVLink multicast stays off in every child (run.py sets it), since on shared hosts it can disturb others.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/run.py" "$@"
