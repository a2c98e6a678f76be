#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds into build-test/ with warnings as errors, and runs everything that needs no GPU.
# The last line is "N passed, N failed, N skipped"; the exit status is 0 when none failed.
set -eu
cd "$(dirname "$0")/.."
. tools/deps.sh

symmshim_install
symmshim_build build-test --werror
status=0
meson test -C build-test --no-rebuild --print-errorlogs || status=$?
python3 tools/count_tests.py build-test/meson-logs/testlog.json || status=1
exit "$status"
