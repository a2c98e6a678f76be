#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds into build/, and runs the demo on two ranks under the shim, on two real GPUs where
# there are, else on the simulated one. Exit status 1 when a result was wrong or not every call went symmetric.
set -eu
cd "$(dirname "$0")/.."
. tools/deps.sh

symmshim_install
symmshim_build build
sh tools/demo/run.sh "$PWD/build" --ranks 2
