#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# without_toolkit.sh COMMAND...: runs a command where the headers, libraries and compiler of CUDA and NCCL cannot be
# found, in a mount namespace of its own. Needs root; status 125 when the view cannot be made.
set -eu

if [ "${WITHOUT_TOOLKIT_LAYERS:-}" = "" ]; then
    layers=$(mktemp -d)
    status=0
    WITHOUT_TOOLKIT_LAYERS=$layers unshare --mount --propagation private sh "$0" "$@" || status=$?
    rmdir "$layers"
    exit "$status"
fi
layers=$WITHOUT_TOOLKIT_LAYERS
unset WITHOUT_TOOLKIT_LAYERS

# The folder of a toolkit is covered by an empty one.
cover() {
    mount -t tmpfs -o size=4k,mode=755 tmpfs "$1" || exit 125
}

# From a folder that has other things too, its files are taken out: in a layer on top of it.
take_out() {
    folder=$1
    shift
    layer=$layers/$(echo "$folder" | tr / _)
    mkdir "$layer" "$layer/upper" "$layer/work"
    mount -t overlay -o "lowerdir=$folder,upperdir=$layer/upper,workdir=$layer/work" overlay "$folder" || exit 125
    rm -rf "$@"
}

mount -t tmpfs tmpfs "$layers" || exit 125
for folder in /usr/local/cuda* /opt/cuda* /usr/lib/cuda*; do
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then
        cover "$folder"
    fi
done
for folder in /usr/local/include /usr/local/lib /usr/local/lib64 /usr/local/bin \
    /usr/include "/usr/lib/$(uname -m)-linux-gnu" /usr/bin; do
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then
        found=$(find "$folder" -maxdepth 1 \( -name 'nccl*' -o -name 'cuda*.h' -o -name 'libnccl*' \
            -o -name 'libcudart*' -o -name 'libcuda.so*' \
            -o -name 'nvcc*' -o -name 'ptxas*' -o -name 'nvlink*' -o -name cicc -o -name cuobjdump -o -name fatbinary \))
        # shellcheck disable=SC2086 # a list of paths
        [ -z "$found" ] || take_out "$folder" $found
    fi
done
"$@"
