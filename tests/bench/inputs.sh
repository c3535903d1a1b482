#!/bin/sh
# Makes further inputs of race.sh with cbk: sh tests/bench/inputs.sh INPUTS CBK
set -eu
in=$(realpath "$1") cbk=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$in/tf"
"$cbk" copy "$in/m/pytorch_model.bin" "$in/tf/m.ckpt" --format tensorflow --overwrite
"$cbk" copy "$in/small/pytorch_model.bin" "$in/tf/small.ckpt" --format tensorflow --overwrite
"$cbk" run "$here/old_run.lua" "$in/m/pytorch_model.bin" "$in/old.mdl"
# Releases before 2.0 stored a tied weight under one name only.
/usr/bin/python3 -c "import h5py, sys; del h5py.File(sys.argv[1], 'r+')['model.model.lm_head.weight']" "$in/old.mdl"
mkdir -p "$in/70b"
"$cbk" -e "local huge = dofile '$here/../lua/huge_models.lua'; huge.write('$in/70b', huge.llama_70b)"
