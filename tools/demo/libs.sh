#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libs.sh BUILD: prints the folders, for LD_LIBRARY_PATH, of the CUDA and NCCL that the demo is to run on: the real
# ones where there are two GPUs and both libraries are found, else the stand-ins of BUILD.
set -eu
build=$1

# The folder of a library: LD_LIBRARY_PATH, the linker's cache, the wheels that PyTorch brings, the toolkit.
folder_of() {
    {
        echo "${LD_LIBRARY_PATH:-}" | tr ':' '\n'
        ldconfig -p 2>/dev/null | sed -n "s|.*$1 .*=> \(.*\)/$1\$|\1|p"
        python3 -c 'import glob, site
for root in site.getsitepackages() + [site.getusersitepackages()]:
    print("\n".join(sorted(glob.glob(root + "/nvidia/*/lib"))))' 2>/dev/null || true
        echo /usr/local/cuda/lib64
    } | while read -r folder; do
        if [ -n "$folder" ] && [ -e "$folder/$1" ]; then
            echo "$folder"
            break
        fi
    done
}

if [ -e /dev/nvidia0 ] && [ -e /dev/nvidia1 ]; then
    cudart=$(folder_of libcudart.so.13)
    nccl=$(folder_of libnccl.so.2)
    if [ -n "$cudart" ] && [ -n "$nccl" ]; then
        echo "$cudart:$nccl"
        exit 0
    fi
    echo "demo: there are GPUs, but no libcudart.so.13 or libnccl.so.2: taking the simulation" >&2
fi
echo "$build/tests/sim"
