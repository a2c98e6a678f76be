# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by quickstart.sh and test.sh: installs what the build needs from Debian, or names it.

symmshim_packages='gcc libc6-dev binutils clang libclang-rt-dev meson ninja-build pkg-config python3
    libcmocka-dev libinih-dev libjansson-dev uthash-dev spin mandoc
    python3-jsonschema python3-html5lib zsh libjemalloc2 libtcmalloc-minimal4'

symmshim_install() {
    missing=
    for package in $symmshim_packages; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "These Debian packages are missing; install them as root and start again:" >&2
        echo "    apt-get install$missing" >&2
        return 1
    fi
    echo "Installing:$missing"
    # shellcheck disable=SC2086 # a list of words
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# symmshim_build FOLDER [MESON OPTIONS]: sets the folder up once, then compiles, with $symmshim_prefix before Meson.
symmshim_build() {
    folder=$1
    shift
    [ -f "$folder/build.ninja" ] || ${symmshim_prefix:-} meson setup "$@" "$folder" >"$folder.setup.log" 2>&1 || {
        cat "$folder.setup.log" >&2
        return 1
    }
    rm -f "$folder.setup.log"
    ${symmshim_prefix:-} meson compile -C "$folder" >"$folder/compile.log" || {
        cat "$folder/compile.log" >&2
        return 1
    }
}
