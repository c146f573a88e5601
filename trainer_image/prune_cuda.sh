#!/bin/sh
# Makes a CPU image of torch's only wheel, which is built for CUDA: deletes the CUDA libraries that the loader does not
# need to load torch (they are opened on first use of a GPU), Triton, and files that only compiling against torch needs.
# Usage: prune_cuda.sh VENV
set -eu
cd "$1"/lib/python3*/site-packages
before=$(du -sm . | cut -f1)
find torch -name '*.so*' -type f -exec ldd {} + 2>/dev/null | sed -n 's/.*=> \([^ ]*\).*/\1/p' | sort -u |
  while read -r file; do readlink -f "$file"; done | sort -u > /tmp/needed
[ "$(grep -c nvidia /tmp/needed)" -gt 5 ] || { echo "prune_cuda.sh: ldd lists no CUDA libraries" >&2; exit 1; }
find nvidia cuda -name '*.so*' -type f 2>/dev/null | while read -r file; do
  grep -qxF "$(readlink -f "$file")" /tmp/needed || rm -f "$file"
done
rm -rf triton torch/include torch/share torch/test nvidia/*/include ray/dashboard/client ray/jars ray/rllib pyarrow/include pyarrow/tests
find . \( -name '*.a' -o -name '*.pxd' -o -name '*.cuh' \) -type f -delete
rm -f /tmp/needed
echo "pruned site-packages from $before to $(du -sm . | cut -f1) MB"
