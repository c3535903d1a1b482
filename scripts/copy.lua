-- cbk copy: copy a checkpoint to another format or dtype, or parts of it

local cbk = require "cbk"
local cli = require "cbk.cli"
local hugging_face_files = require "cbk.hugging_face_files"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local optimizer_check = require "converters.modelzoo.optimizer_check"
local quantised = require "cbk.quantised"
local quantised_copy = require "cbk.cli.quantised_copy"
local rename = require "cbk.cli.rename"
local selection = require "cbk.cli.selection"
local shard_by = require "cbk.cli.shard_by"
local sparsity = require "converters.modelzoo.sparsity"
local to_dtype = require "cbk.cli.to_dtype"
local weights_of = require("converters.conversion.weights").of

local parser = cli.parser("copy", "Copy a checkpoint: any format to any format, streamed.", [[
The target's format follows from its name:
  ]] .. cbk.suffixes() .. "\n" .. [[

For other names, pass --format. With --shard-size or --shard-by the target is a folder of shards
with their index.json, or a TensorFlow checkpoint with several data files.

GLOB matches whole keys: '*' matches any text (dots too), '?' one character, [a-z], {a,b};
a plain name also means everything below it. --exclude overrides --include.

--rename 'OLD=NEW' changes keys; several are applied in order, each to the result of the one before:
  plain text     every OLD in a key becomes NEW: 'gamma=weight'
  with * or ?    OLD is the whole key; each * (or ?) in NEW is what that one
                 matched: 'model.*=*'
  with ^ $ or %  a Lua pattern, as in string.gsub: '^h%.(%d+)=layers.%1'

An '=' in OLD is written '\='. What is put before a key with dots becomes part of it: '*=model.*' makes names, and no
dict 'model'.

Quantised weights are copied as they are, with their scales; --to-dtype alone refuses them, and so does a
selection that takes codes without their scales. --dequantize makes numbers of them: FP8 and int8 with a
scale per tensor, row or block, bitsandbytes int8, MXFP4, GPTQ and AWQ of 4 bits. The weights get their own
names, to which the other options apply, and scales are left out. The config.json beside the source says
how blocks are cut. If you put it beside the copy yourself, remove 'quantization_config' from it; if cbk
copies it (--weights), the field is left out.

--weights takes the weights out of what trainers put around them: dicts such as 'state_dict' or 'model', and the prefixes of DDP,
FSDP, torch.compile and Lightning. A prefix is taken off only if all names have it. The other options apply to the names after that.
If SRC is a folder and DST a folder of shards, the config and tokenizer in SRC go along, so that DST is a Hugging Face model.

Tied tensors stay tied if the target's format has ties. A value that the format cannot hold is an
error before anything is written.

examples:
  cbk copy pytorch_model.bin model.safetensors --to-dtype bfloat16
  cbk copy checkpoint.pt weights.safetensors --weights
  cbk copy DeepSeek-V3 folder --dequantize bfloat16 --format safetensors --shard-size 5GB
  cbk copy model.mdl weights.pt --include model --rename 'model.*=*'
  cbk copy model.safetensors folder --format safetensors --shard-size 5GB
  cbk copy model.safetensors folder --format safetensors --shard-by '*embed*'
  cbk copy model.mdl small.mdl --compress deflate
  cbk copy model.mdl head.npy --include model.lm_head.weight --to-dtype float32]])
parser:argument("source", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "SRC"
parser:argument("target", "what to write"):argname "DST"
cli.format_option(parser, "DST")
parser:option("--h5-version", "0.4, 0.5 or flat (default: 0.5)"):argname("VERSION"):choices { "0.4", "0.5", "flat" }
parser:option("--compress", "write H5 in chunks packed by deflate (h5py reads it), lz4 or zstd (h5py needs hdf5plugin; smaller)")
  :argname("HOW"):choices { "deflate", "lz4", "zstd" }
to_dtype.option(parser, "all floating tensors")
parser:option("--dequantize", "multiply the scales of quantised weights in: bfloat16, float16, float32 (default: copy codes and scales)")
  :argname("DTYPE"):convert(to_dtype.floating "--dequantize")
parser:flag("--weights", "copy the model's weights alone, under their own names: out of a training checkpoint, a sharded folder, a wrapper")
parser:option("--include --key", "copy only these keys (default: all); may be repeated"):argname("GLOB"):count "*"
parser:option("--exclude", "leave these keys out; may be repeated"):argname("GLOB"):count "*"
parser:option("--rename", "rename keys; may be repeated"):argname("OLD=NEW"):count "*"
parser:option("--shard-size", "write shards of at most this size, such as 10GB (default: one file)"):argname("SIZE")
  :convert(cli.size "--shard-size")
shard_by.option(parser)
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()
if args.dequantize and args.to_dtype and args.dequantize ~= args.to_dtype then
  cli.usage_error("copy", ("--dequantize %s and --to-dtype %s are different dtypes of the weights; leave out one of them"):format(
    args.dequantize, args.to_dtype))
end
if args.target == "-" then cli.usage_error("copy", "DST '-': a checkpoint cannot be written to standard output; name a file") end


-- --- which keys, and their names

local chosen = selection.new(args.include, args.exclude)
local renames = {}
for i, text in ipairs(args.rename) do
  local rule, problem = rename.parse(text)
  if not rule then cli.usage_error("copy", "--rename: " .. problem) end
  renames[i] = rule
end

local kept, dropped = 0, 0 -- keys that are to be in the copy, and others

local function new_key(key)
  if not chosen:has(key) then
    dropped = dropped + 1
    return nil
  end
  for _, rule in ipairs(renames) do key = rule.apply(key) end
  kept = kept + 1
  return key
end

--- A list without its first items begins with 0 again.
local function warn_of_new_positions(before, after)
  local rows = cbk.leaf_rows(after)
  for key in cbk.leaves(before) do
    local wanted = new_key(key)
    if wanted and not rows:find(wanted) then
      cbk.warn(("list items were renumbered because some were excluded: %s has another number now"):format(cbk.quote(wanted)))
      return
    end
  end
end

--- An option that did nothing is nearly always a mistake.
local function warn_of_idle_options()
  local idle = chosen:idle()
  for _, rule in ipairs(renames) do
    if rule.hits == 0 then idle[#idle + 1] = ("--rename %s changes no key"):format(cbk.quote(rule.text)) end
  end
  cli.warn(idle)
end

--- An optimizer names the weights in keys, which are renamed, and in lists, which are not.
local function warn_of_parameters(before, after)
  local was_strange, names = {}, {}
  for _, name in ipairs(optimizer_check.strangers(before)) do was_strange[name] = true end
  for _, name in ipairs(optimizer_check.strangers(after)) do names[#names + 1] = not was_strange[name] and name or nil end
  if #names == 0 then return end
  cbk.warn(("--rename changes no names within lists, so %s of the optimizer %s no weight now: %s; leave it out with --exclude "
    .. "'optimizer.*'"):format(numbers.counted(#names, "parameter"), #names == 1 and "has" or "have", naming.listed(names, 3)))
end

--- Up to release 2.1 masks of sparse weights are in the optimizer's state.
local function warn_of_masks(before, after)
  local masks = sparsity.in_optimizer(before)
  local has_model = kinds.is_dict(after) and kinds.is_dict(after, "model")
  if #masks == 0 or not has_model or #sparsity.in_optimizer(after) > 0 then return end
  cbk.warn(("the masks of sparse weights, with which the model computes, are not in the copy: %s, such as '%s'; keep them with --exclude "
    .. "'optimizer.state.*' in place of the whole optimizer"):format(numbers.counted(#masks, "mask"), masks[1].path))
end

local checkpoint = cli.open(args.source, args)
local source = args.weights and weights_of(checkpoint:raw_root(), args.source) or checkpoint:raw_root()
if args.dequantize then source = quantised_copy.dequantised(source, args.source, args.dequantize, checkpoint,
  args.allow_external) end
local rules = { checkpoint = checkpoint }
local weights = quantised_copy.new(source, args.source, not args.dequantize)
if #args.include + #args.exclude + #renames > 0 then
  rules.path = function(key)
    local new = new_key(key)
    weights:note(key, new)
    return new
  end
end
local counters = {}
if args.to_dtype then rules.leaf = to_dtype.caster(args.to_dtype, counters) end
local root = (rules.path or rules.leaf) and cbk.rewrite(source, rules) or source
to_dtype.warn_of_counters(args.to_dtype, counters, "--include copies the weights alone")
if args.to_dtype then weights:check_cast(args.to_dtype) end
if rules.path then
  weights:check_parts(root)
  if kept == 0 then chosen:fail_empty(args.source, source) end
  warn_of_idle_options()
  if dropped > 0 then warn_of_new_positions(source, root) end
  if #renames > 0 then warn_of_parameters(source, root) end
  if dropped > 0 then warn_of_masks(source, root) end
end

--- Trainers keep the model's config and tokenizer in the folder with the checkpoint: with them, a folder of weights is a model.
local function companions()
  local is_model = args.weights and cbk.fs.is_dir(args.source) and (args.shard_size or #args.shard_by > 0)
  if not is_model then return nil end
  local files = hugging_face_files.read(args.source, args.allow_external)
  local config = cbk.fs.beside(args.source, "config.json", args.allow_external)
  files["config.json"] = config and cbk.fs.read(config) or nil
  if config and args.dequantize then
    files["config.json"] = cbk.config.dump(quantised.without_fields(cbk.config.load(config)), "json", { indent = 2 })
  end
  return next(files) ~= nil and files or nil
end

local is_old_h5 = checkpoint.format == "cerebras-h5" and (tonumber(checkpoint.version) or 1) < 0.45
if is_old_h5 and not args.h5_version and (args.format or cbk.format_of_name(args.target)) == "h5" then
  cbk.warn(("'%s' is H5 %s, and the copy is H5 0.5, which releases up to 2.4 cannot read: pass --h5-version 0.4 for them"):format(
    cbk.shown(args.source), checkpoint.version))
end

local names = {}
for key in cbk.leaves(#args.shard_by > 0 and root or cbk.dict()) do names[#names + 1] = key end
local options = {
  root = root,
  metadata = checkpoint.format == "safetensors" and checkpoint.metadata ~= cbk.null and checkpoint.metadata or nil,
  overwrite = args.overwrite,
  format = args.format,
  h5_version = args.h5_version,
  compression = args.compress,
  shard_size = args.shard_size,
  shards = shard_by.shards("copy", args, names),
  companions = companions(),
  keep_texts = args.h5_version == "flat" and checkpoint.format:find "^flat%-h5" ~= nil, -- else it loses what it has
}
local written, plan = weights:write(function() return cli.commit(cbk.create(args.target, options), args) end)
cli.print_result(args, written, { { "checkpoint", args.target } }, plan)
