-- cbk params: list the tensors of a model, from its config alone

local cbk = require "cbk"
local cli = require "cbk.cli"
local config_file = require "cbk.cli.config_file"
local classes = require "cbk.classes"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local extents = require "cbk.extents"
local configs = require "cbk.recognise.configs"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local text_table = require "cbk.text_table"

local parser = cli.parser("params", "List the tensors that a model has, from its config alone.", [[
examples:
  cbk params config.json
  cbk params params.yaml --model gpt2 --from cs-2.4 --json]])
parser:argument("config", "config.json or params.yaml, or a YAML file with the section 'model' alone"):argname "CONFIG"
converters.model_option(parser)
cli.format_options(parser, { from = "the config's format (default: hf for config.json, else the newest release)" }):hidden_name "--format"
parser:flag("--all", "one line for each tensor, without folding layers")
cli.converter_options(parser)
cli.options(parser, "json")
local args = parser:parse()

cli.confine(args)
local only = converters.load(args.converter, args.sandbox)
config_file.check_model(args.config)
local config = config_beside.load(args.config)
local list = classes.tensors(config, configs.model_of(config, args.model or only, args.src_fmt))

---Elements of a tensor.
local function count(shape)
  local out = 1
  for _, extent in ipairs(shape) do out = out * extent end
  return out
end

-- A parameter counts once, under whichever name; buffers are no parameters.
local parameters, tied = 0, 0
for _, one in ipairs(list) do
  local is_counted = not (one.tied_to or one.buffer or one.optional)
  if one.tied_to and not one.optional then tied = tied + 1 elseif is_counted then parameters = parameters + count(classes.shape(one)) end
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

-- --- for people

local COLUMNS = { { title = "tensor", share = 0.6 }, { title = "", weight = 1, right = true }, { title = "shape", weight = 3 },
  { title = "parameters", weight = 2, right = true }, { title = "note", weight = 4 } }

---The tensors as rows; those of like layers in one.
---@param tensors ClassTensor[]
---@return string[][]
local function rows_of(tensors)
  local entries, rows = {}, {}
  for i, one in ipairs(tensors) do
    local shape = classes.shape(one)
    local signature = table.concat({ extents.shape(shape), one.tied_to or "", one.buffer and "b" or "", args.all and i or "" }, "\0")
    entries[i] = { path = one.key, signature = signature, one = one, count = count(shape), shape = extents.shape(shape) }
  end
  for i, group in ipairs(fold.groups(entries)) do
    local first, members = group.members[1], #group.members
    local is_counted = not (first.one.tied_to or first.one.buffer)
    rows[i] = { first.one.tied_to and ("%s = %s"):format(group.name, first.one.tied_to) or group.name,
      members > 1 and numbers.grouped(members) .. " ×" or "", first.shape, is_counted and numbers.grouped(members * first.count) or "",
      first.one.buffer and "buffer" or "" }
  end
  return rows
end

local function print_table(tensors)
  for _, line in ipairs((text_table.lines(COLUMNS, rows_of(tensors), cli.columns()))) do print(line) end
end

local stored, spare = {}, {}
for _, one in ipairs(list) do
  local is_spare = one.buffer or one.optional
  table.insert(is_spare and spare or stored, one)
end
print_table(stored)
if #spare > 0 then
  print "\nIn some checkpoints only, and not counted:"
  print_table(spare)
end
print(("\n%s, %s%s"):format(numbers.counted(#stored, "tensor"), numbers.counted(parameters, "parameter"),
  tied > 0 and (" (%d tied, counted once)"):format(tied) or ""))
for _, one in ipairs { { "float32", 4 }, { "bfloat16 or float16", 2 }, { "int8", 1 } } do
  print(("%-20s %s"):format(one[1], cbk.format_size(parameters * one[2])))
end
