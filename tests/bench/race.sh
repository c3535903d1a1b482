#!/bin/sh
# Races cbk against cp and against plain torch + h5py, job by job, in turn.
#   sh tests/bench/race.sh TOOLS INPUTS CBK [ROUNDS [TEXT]]
# With TEXT, only the jobs run that have it in their titles.
# TOOLS holds race.py (runs commands in turn, prints medians and ratios to the first) and torch_convert.py (the peer).
# Before each run the input is read and then all free memory is touched once, in this order: under a hypervisor that
# takes idle pages back within seconds, whoever writes first would pay for getting them again.
# INPUTS holds m/ (a LLaMA-like folder of 4 GB in one pickle), m.h5 (the same as flat H5) and small/ (20,000 tensors);
# inputs.sh makes the rest: of these tf/ (both as bundles) and old.mdl (a run of a release before 2.0), and 70b/ (a
# LLaMA of 70B without its bytes).
set -eu
tools=$1 in=$2 cbk=$3 rounds=${4:-5} wanted=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
out=$in/out
bin=$in/m/pytorch_model.bin
peer="/usr/bin/python3 $tools/torch_convert.py"
prepare=:
touch_memory="/usr/bin/python3 -c \"x=b'x'*(6<<30)\""

race() { # TITLE WARM_FILE NAME=COMMAND...
  title=$1 warm=$2
  shift 2
  case $title in *"$wanted"*) ;; *) return 0 ;; esac
  printf '\n## %s\n' "$title"
  /usr/bin/python3 "$tools/race.py" -n "$rounds" --warmup 0 \
    --before "rm -rf $out; mkdir $out; $prepare; sync; cat $warm >/dev/null; $touch_memory" "$@"
}

race "pickle to H5" "$bin" "cp=cp $bin $out/x" "cbk=$cbk copy $bin $out/x.mdl" "torch=$peer bin2h5 $bin $out/x.h5"
race "pickle to safetensors" "$bin" "cp=cp $bin $out/x" "cbk=$cbk copy $bin $out/x.safetensors" "torch=$peer bin2st $bin $out/x.st"
race "pickle to pickle" "$bin" "cp=cp $bin $out/x" "cbk=$cbk copy $bin $out/x.bin" "torch=$peer bin2bin $bin $out/x.bin"
race "H5 to H5, renamed" "$in/m.h5" "cp=cp $in/m.h5 $out/x" "cbk=$cbk copy $in/m.h5 $out/x.mdl --rename model.=decoder." \
  "torch=$peer h52h5 $in/m.h5 $out/x.h5"
race "H5 to pickle" "$in/m.h5" "cp=cp $in/m.h5 $out/x" "cbk=$cbk copy $in/m.h5 $out/x.bin" "torch=$peer h52bin $in/m.h5 $out/x.bin"
race "cast to bfloat16" "$bin" "cp=cp $bin $out/x" "cbk=$cbk copy $bin $out/x.safetensors --to-dtype bfloat16" \
  "torch=$peer bin2st $bin $out/x.st --cast bfloat16"
race "LLaMA to Cerebras (rotary interleave)" "$bin" "cp=cp $bin $out/x" \
  "cbk=$cbk convert --model llama --src-fmt hf --tgt-fmt cs-2.5 --config $in/m/config.json $bin --output-dir $out" \
  "torch=$peer bin2h5 $bin $out/x.h5 --interleave 32 4"
race "every matrix transposed" "$bin" "cp=cp $bin $out/x" "cbk=$cbk run $here/turn.lua $bin $out/x.safetensors" \
  "torch=$peer bin2st $bin $out/x.st --transpose .*"
race "20,000 small tensors to H5" "$in/small/pytorch_model.bin" "cp=cp $in/small/pytorch_model.bin $out/x" \
  "cbk=$cbk copy $in/small/pytorch_model.bin $out/x.mdl" "torch=$peer bin2h5 $in/small/pytorch_model.bin $out/x.h5"
bundle=$in/tf/m.ckpt
data=$bundle.data-00000-of-00001
race "bundle to H5" "$data" "cp=cp $data $out/x" "cbk=$cbk tensorflow-to-h5 $bundle $out/x.h5"
race "bundle to bundle" "$data" "cp=cp $data $out/x" "cbk=$cbk copy $bundle $out/x --format tensorflow"
race "H5 to bundle" "$in/m.h5" "cp=cp $in/m.h5 $out/x" "cbk=$cbk h5-to-tensorflow $in/m.h5 $out/x"

old=$in/old.mdl
race "fix-checkpoint-spec" "$old" "cp=cp $old $out/x" "cbk=$cbk fix-checkpoint-spec $old --fixed_checkpoint_path $out/x.mdl"
# In place: what the run before has added is taken off again.
in_place=$in/old_in_place.mdl
cp "$old" "$in_place"
prepare="head -c 4096 $old | dd of=$in_place conv=notrunc status=none; truncate -s $(stat -c %s "$old") $in_place"
race "fix-checkpoint-spec in place" "$in/m/config.json" "true=true" "cbk=$cbk fix-checkpoint-spec --fix_inplace --yes $in_place"
prepare=:
rm "$in_place"

# What writes nothing needs no memory of its own; touching all of it would only empty the caches.
touch_memory=:
race "listing 20,000 tensors" "$in/small/pytorch_model.bin" "cp=cp $in/small/pytorch_model.bin $out/x" \
  "cbk=$cbk ls $in/small/pytorch_model.bin" "torch=$peer list $in/small/pytorch_model.bin -"
race "listing 20,000 variables of a bundle" "$in/tf/small.ckpt.index" "true=true" "cbk=$cbk ls $in/tf/small.ckpt"
big=$in/70b
race "planning a LLaMA of 70B" "$big/config.json" "true=true" "cbk=$cbk convert --model llama --src-fmt hf --tgt-fmt cs-2.4 \
  --config $big/config.json $big/model.safetensors --dry-run"
race "start-up" "$in/m/config.json" "true=true" "cbk=$cbk -e 1"
