-- cbk merge: merge models of one architecture

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local folder = require "cbk.merge.folder"
local merge_config = require "cbk.merge.config"
local model = require "cbk.merge.model"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local plan = require "cbk.merge.plan"

local parser = cli.parser("merge", [[
Merge models of one architecture by a config of mergekit, streamed.

The config names the models, which are folders of Hugging Face (or files) on this machine, the
method and its parameters. DIR becomes a folder with the merged weights as safetensors, and with
the config and the tokenizer's files of the base model (without one: of the first model).]], [[
The config is mergekit's YAML:
  merge_method   linear, slerp, task_arithmetic, ties, dare_linear, dare_ties, passthrough
  models         whole models: each has 'model', a path, and may have 'parameters'
  slices         or layers of models, one slice after the other: each has
                 'sources', with 'model' and 'layer_range' (from 0, without
                 the last)
  base_model     the model that others are compared with (slerp: where t is 0)
  parameters     for all models; those of a slice or of a model have
                 precedence. A value is a number, a list (a gradient over the
                 layers of the slice) or a list of
                 { filter: PART OF A NAME, value: … }
  dtype          models are rounded to this dtype first, and the result has it
  out_dtype      the dtype of the result (default: dtype, else that of the base model)
  tokenizer_source   only 'base': all models must have the base model's vocabulary

Parameters, and their defaults:
  linear           weight; normalize (true)
  slerp            t; two models. Nearly parallel tensors (cosine beyond 0.9995) are mixed linearly
  passthrough      scale (none)
  task_arithmetic  weight; normalize (false), lambda (1)
  ties             weight, density (1); normalize (true), rescale (false), lambda (1)
  dare_linear, dare_ties   weight, density (1); normalize (false), rescale (true), lambda (1)

All is computed in float32 (float64 for float64) and rounded once. A tensor that one of the models
lacks is an error; a tied head that is missing is read from the embeddings. Embeddings of different
length are cut to the rows that all have, in task_arithmetic, ties and dare_* to those of the base
model. In these, other tensors of another shape are left out, with a warning.

What depends on whole tensors is measured just before they are written, in bounded memory. slerp,
and dare_* for 'rescale', read each tensor twice. ties finds the threshold of each difference
exactly: it reads tensors twice, those of more than 1,048,576 elements three times, and a 16th more
where elements are equal; then the first ones are kept. 'rescale' reads once more. The random
numbers of dare_* depend on --seed, the tensor's name and the model's place alone. Quantised models
are refused.

examples:
  cbk merge merge.yml -o merged
  cbk merge dare.yml -o merged --seed 3 --shard-size 5GB
  cbk merge merge.yml -o merged --dry-run]])
parser:argument("config", "the YAML of the merge"):argname "CONFIG"
parser:option("-o --output", "the folder to write"):hidden_name("--output-dir"):argname("DIR"):count(1)
parser:option("--seed", "the seed of dare_linear and dare_ties (default: 0)"):argname("N"):convert(cli.whole_number "--seed")
parser:option("--shard-size", "the largest size of a shard (default: 10GB)"):argname("SIZE"):convert(cli.size "--shard-size")
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

if cbk.format_of_name(args.output) then
  cli.usage_error("merge", ("-o %s: expected the name of a folder, found that of a file"):format(args.output))
end

---Each model of the config once.
---@param config MergeConfig
---@return table<string, MergeModel> by_path, MergeModel[] list
local function open_models(config)
  local by_path, list = {}, {}
  local function open(path)
    if not path or by_path[path] then return end
    by_path[path] = model.open(path, args, "merge")
    list[#list + 1] = by_path[path]
  end
  open(config.base)
  for _, slice in ipairs(config.slices) do
    open(slice.base)
    for _, source in ipairs(slice.sources) do open(source.model) end
  end
  return by_path, list
end

---Warns of architectures that differ: equal names of tensors need not mean the same.
---@param list MergeModel[]
local function warn_of_architectures(list)
  local found = {}
  for _, one in ipairs(list) do
    local names = one.config and one.config.architectures
    local name = cbk.kind(names) == "list" and names[1]
    if type(name) == "string" then found[name] = true end
  end
  local names = naming.sorted(found)
  if #names > 1 then cbk.warn(("the models have different architectures: %s"):format(table.concat(names, ", "))) end
end

cli.depend_on(args.config, args)
converters.refuse_existing(args.output, args)
local config = merge_config.parse(cbk.config.load(args.config))
local models, list = open_models(config)
warn_of_architectures(list)
local base = models[config.base or config.slices[1].sources[1].model]
if config.keeps_tokens then folder.check_vocabularies(base, list, args.allow_external) end
local merged = plan.make(config, models, args.seed or 0)
local companions = folder.companions(base, folder.config_text(base, config, merged), cbk.fs.read(args.config), args.allow_external)
local written, forecast = cli.commit(cbk.create(args.output, {
  root = merged.root, overwrite = args.overwrite, format = "safetensors", shard_size = args.shard_size or "10GB", companions = companions,
}), args)
cli.say(args, ("%s of %s %s merged into %s"):format(numbers.counted(cbk.count(merged.root), "tensor"), numbers.counted(#list, "model"),
  written and "were" or "would be", args.output))
cli.print_result(args, written, { { "checkpoint", args.output }, { "method", config.method }, { "models", #list } }, forecast)
