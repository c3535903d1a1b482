-- cbk params: list the tensors of a model, from its config alone

local cbk = require "cbk"
local cli = require "cbk.cli"
local classes = require "cbk.classes"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local extents = require "cbk.extents"
local configs = require "cbk.recognise.configs"

local parser = cli.parser("params", "List the tensors that a model has, from its config alone.", [[
examples:
  cbk params config.json
  cbk params params.yaml --model gpt2 --from cs-2.4 --json]])
parser:argument("config", "config.json or params.yaml, or a YAML file with the section 'model' alone"):argname "CONFIG"
parser:option("--model", "the model, as `cbk list` names it (default: detected)"):argname "NAME"
cli.format_options(parser, { from = "the config's format: hf or cs-X.Y (default: detected)" }):hidden_name "--format"
cli.converter_options(parser)
cli.options(parser, "json")
local args = parser:parse()

cli.confine(args)
local only = converters.load(args.converter, args.sandbox)
local config = config_beside.load(args.config)
local list = classes.tensors(config, configs.model_of(config, args.model or only, args.src_fmt))

---Elements of a tensor.
local function count(shape)
  local out = 1
  for _, extent in ipairs(shape) do out = out * extent end
  return out
end

-- A parameter counts once, under whichever name; buffers are no parameters.
local parameters, tied, buffers = 0, 0, 0
for _, one in ipairs(list) do
  if one.tied_to then tied = tied + 1
  elseif one.buffer then buffers = buffers + 1
  elseif not one.optional then parameters = parameters + count(classes.shape(one)) end
end

local MOST_PARAMETERS = 2 ^ 51 -- whose bytes are exact numbers
if parameters > MOST_PARAMETERS then
  cbk.fail("config", ("the config describes %.3g parameters, more than any file can hold; check its sizes"):format(parameters))
end

local function as_json(one)
  local out = cbk.dict { { "key", one.key }, { "shape", cbk.list(classes.shape(one)) } }
  for _, field in ipairs { "tied_to", "buffer", "optional" } do out[field] = one[field] end
  return out
end

if args.json then
  local tensors = cbk.list()
  for i, one in ipairs(list) do tensors[i] = as_json(one) end
  cli.print_json(cbk.dict { parameters = parameters, tensors = tensors })
  return
end

for _, one in ipairs(list) do
  local note = one.tied_to and "  tied to " .. one.tied_to or one.buffer and "  buffer, may be absent"
    or one.optional and "  may be absent" or ""
  print(("%s  %s%s"):format(one.key, extents.shape(classes.shape(one)), note))
end
print(("%d tensors, %d parameters"):format(#list, parameters) .. (tied > 0 and (", %d tied"):format(tied) or "")
  .. (buffers > 0 and (", %d buffers"):format(buffers) or ""))
for _, one in ipairs { { "float32", 4 }, { "bfloat16 or float16", 2 }, { "int8", 1 } } do
  print(("%-20s %s"):format(one[1], cbk.format_size(parameters * one[2])))
end
