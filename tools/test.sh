#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test.sh [STAGE...]: installs what is missing, then builds and runs everything that needs no GPU, in stages (those
# named, else all; --list names them), each in a folder build-* of its own and with warnings as errors.
# The last line is "N passed, N failed, N skipped" over all stages; the exit status is 0 when none failed.
set -eu
cd "$(dirname "$0")/.."
. tools/deps.sh

stages='gcc clang bare asan tsan'
# What takes long and is the same for every compiler: gcc has all of it, asan all but the model.
again='--no-suite model --no-suite faults --no-suite soak --no-suite forecast --no-suite hostile'

describe() {
    case $1 in
    gcc) echo 'gcc; checks our declarations against the headers of CUDA and NCCL where there are any' ;;
    clang) echo 'clang, with the fuzz targets as libFuzzer has them' ;;
    bare) echo 'no CUDA and no NCCL: headers, libraries and nvcc are out of sight' ;;
    asan) echo 'gcc, AddressSanitizer and UndefinedBehaviorSanitizer' ;;
    tsan) echo 'gcc, ThreadSanitizer over the tests that have threads' ;;
    *) return 1 ;;
    esac
}

# stage NAME PREFIX MESON_OPTIONS TEST_OPTIONS: builds into build-NAME and tests, every command behind PREFIX.
stage() {
    echo "== $1: $(describe "$1")"
    rm -f "build-$1/meson-logs/testlog.json"
    symmshim_prefix=$2
    # shellcheck disable=SC2086 # lists of words
    symmshim_build "build-$1" --werror $3 &&
        $2 meson test -C "build-$1" --no-rebuild --print-errorlogs $4 || status=1
    logs="$logs $1=build-$1/meson-logs/testlog.json"
}

# The toolkit can only be hidden where this may mount; else the build is pointed away from it.
bare() {
    view='sh tools/without_toolkit.sh'
    if $view true 2>/dev/null; then
        stage bare "$view env CC=gcc" '' "$again"
        if [ -e build-bare/shim/libcheck_abi.a ]; then
            echo 'bare: CUDA and NCCL were found although they are hidden' >&2
            status=1
        fi
    else
        echo 'bare: nothing can be mounted here, so the toolkit is hidden only in part (-Dcuda-incdir=/nonexistent)' >&2
        stage bare 'env CC=gcc' '-Dcuda-incdir=/nonexistent' "$again"
    fi
}

# Sanitizers slow down what has a time limit: -t.
run_stage() {
    case $1 in
    gcc) stage gcc 'env CC=gcc' '' '' ;;
    clang) stage clang 'env CC=clang' '-Dfuzzing=true' "$again" ;;
    bare) bare ;;
    asan) stage asan 'env CC=gcc' '-Db_sanitize=address,undefined -Db_lundef=false' '--no-suite model -t 3' ;;
    tsan)
        # Faults that tests ask for are to end them as they would without a sanitizer, a race is to end them at once,
        # and none is to wait a second at its end for a race to turn up.
        export TSAN_OPTIONS="handle_segv=0:halt_on_error=1:atexit_sleep_ms=20:suppressions=$PWD/tests/tsan.supp"
        # What has no threads has no races to find: the suite "threads" is the rest, and each meson.build of the tests
        # says who belongs to it. Processes that share memory are no threads to it either; that is why board_stress
        # drives the board by threads as well.
        stage tsan 'env CC=gcc' '-Db_sanitize=thread -Db_lundef=false' '--suite threads -t 5'
        ;;
    esac
}

if [ "${1:-}" = --list ]; then
    for name in $stages; do
        printf '%-6s %s\n' "$name" "$(describe "$name")"
    done
    exit 0
fi
for name in "$@"; do
    describe "$name" >/dev/null || {
        echo "test.sh: no stage '$name'; stages: $stages" >&2
        exit 2
    }
done
# shellcheck disable=SC2086 # a list of words
[ $# -gt 0 ] || set -- $stages

symmshim_install
status=0
logs=
for name in "$@"; do
    run_stage "$name"
done
# shellcheck disable=SC2086 # a list of words
python3 tools/count_tests.py $logs || status=1
exit "$status"
