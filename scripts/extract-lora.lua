-- cbk extract-lora: make a LoRA adapter of the difference of two models

local buffer = require "string.buffer"
local cbk = require "cbk"
local extract = require "cbk.peft.extract"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local model = require "cbk.merge.model"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local team = require "cbk.team"
local text_table = require "cbk.text_table"

local parser = cli.parser("extract-lora", [[
Make a LoRA adapter of the difference of two models, streamed a matrix at a time.

DIR becomes a folder of PEFT, with adapter_config.json and adapter_model.safetensors. BASE and TUNED
are models of one architecture: folders of Hugging Face, or files. 'cbk fold-lora-checkpoint' adds
the adapter to BASE again.]], [[
Each linear layer that differs gets the matrices of a truncated singular value decomposition of the
difference; both have the square roots of the singular values, and alpha is the rank. The energy is
the sum of the squares of all elements of a difference: what is kept of it is printed.

Other tensors that differ are saved whole (modules_to_save, and biases), as mergekit does: input
embeddings, the head, norms, and tensors that only TUNED has. --matrices-only leaves them out, with
a warning.

Both models are read once to find what differs, also with --dry-run. Then, where 3 x (1.5 x RANK, or RANK + 16 if that is
more) is at most the smaller side of a matrix, the decomposition is randomized, with a fixed seed
and two power iterations: five passes over the two matrices, in bounded memory. Else it is exact,
and needs the matrix in memory as float64, several times. The result is the same for any number of
threads.

examples:
  cbk extract-lora base tuned -o adapter --rank 32
  cbk extract-lora base tuned -o adapter --rank 16 --target-modules q_proj,v_proj --dtype bfloat16
  cbk extract-lora base tuned -o adapter --rank 8 --matrices-only --dry-run]])
parser:argument("base", "the model that was tuned"):argname "BASE"
parser:argument("tuned", "the tuned model"):argname "TUNED"
parser:option("-o --output", "the folder to write"):hidden_name("--output-dir"):argname("DIR"):count(1)
parser:option("--rank", "the rank of the matrices, such as 32"):argname("R"):convert(cli.whole_number "--rank"):count(1)
parser:option("--target-modules", "names of linear layers, separated by commas, such as q_proj,v_proj (default: all that differ)")
  :argname "NAMES"
parser:flag("--matrices-only", "leave out embeddings, norms and other tensors that get no matrices")
parser:option("--dtype", "the dtype of the matrices (default: float32)"):argname("DTYPE"):convert(cli.dtype)
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

local function usage(message) cli.usage_error("extract-lora", message) end

if args.rank < 1 then usage(("--rank: expected at least 1, found %d"):format(args.rank)) end
if cbk.format_of_name(args.output) then usage(("-o %s: expected the name of a folder, found that of a file"):format(args.output)) end
local dtype = args.dtype or "float32"
if dtype ~= "float32" and dtype ~= "bfloat16" and dtype ~= "float16" then usage "--dtype: expected float32, bfloat16 or float16" end

---@return string[]|nil
local function targets()
  if not args.target_modules then return nil end
  local out = {}
  for name in args.target_modules:gmatch "[^,%s]+" do out[#out + 1] = name end
  if #out == 0 then usage "--target-modules: expected names of linear layers, separated by commas" end
  return out
end

---The pairs of tensors that differ. Ranks of a team share the reading.
---@param base MergeModel
---@param tuned MergeModel
---@return DifferingPair[]
local function differing_pairs(base, tuned)
  local pairs_of_both, files, out = extract.pairs(base, tuned), {}, {}
  for _, one in ipairs { base, tuned } do
    for _, file in ipairs(one.files) do files[#files + 1] = file end
  end
  local differs = team.shared(#pairs_of_both, function(n) return extract.cost(pairs_of_both[n]) end,
    function(n) return extract.differs(pairs_of_both[n]) end, files)
  for n, pair in ipairs(pairs_of_both) do
    if differs(n) then out[#out + 1] = pair end
  end
  if #out == 0 then cbk.fail("value", ("'%s' and '%s' have the same weights"):format(args.base, args.tuned)) end
  return out
end

---@class EnergyGroup
---@field name string
---@field layers integer
---@field known integer   those whose energy is known
---@field kept number
---@field all number

---The energy of the layers of each name, and of all. Each process knows that of the layers that it has computed.
---@param parts AdapterPart[]
---@return EnergyGroup[] groups, EnergyGroup total
local function energies(parts)
  local own, found = {}, {}
  for i, part in ipairs(parts) do
    local kept, all = part.product:energy()
    if kept then own[i] = { kept, all } end
  end
  for _, text in ipairs(cbk.team_exchange(buffer.encode(own))) do
    for i, pair in pairs(buffer.decode(text)) do found[i] = pair end
  end
  local groups, by_name, total = {}, {}, { name = "all", layers = 0, known = 0, kept = 0, all = 0 }
  for i, part in ipairs(parts) do
    local name = naming.last(part.module)
    if not by_name[name] then
      by_name[name] = { name = name, layers = 0, known = 0, kept = 0, all = 0 }
      groups[#groups + 1] = by_name[name]
    end
    for _, group in ipairs { by_name[name], total } do
      group.layers = group.layers + 1
      if found[i] then group.known, group.kept, group.all = group.known + 1, group.kept + found[i][1], group.all + found[i][2] end
    end
  end
  return groups, total
end

---@param groups EnergyGroup[]
---@param total EnergyGroup
local function print_energies(groups, total)
  if total.known == 0 then return cli.say(args, "The energy that is kept was computed by other processes, and is not known here") end
  local rows = {}
  for _, group in ipairs { total, unpack(groups) } do
    rows[#rows + 1] = { group.name, tostring(group.layers), group.all > 0 and numbers.percent(group.kept, group.all) or "" }
  end
  local columns = {
    { title = "layers" }, { title = "number", right = true, weight = 1 }, { title = "energy kept", right = true, weight = 2 },
  }
  for _, line in ipairs((text_table.lines(columns, rows, cli.columns()))) do cli.say(args, line) end
  if total.known < total.layers then
    cli.say(args, ("(of %d of %d layers: other processes computed the rest)"):format(total.known, total.layers))
  end
end

local function warn_of_left_out(keys)
  if #keys == 0 then return end
  cbk.warn(("%s differ, and are not in the adapter: %s"):format(numbers.counted(#keys, "tensor"), naming.folded(keys)))
end

local target = cbk.fs.join(args.output, "adapter_model.safetensors")
converters.refuse_existing(target, args)
local base, tuned = model.open(args.base, args, "compare"), model.open(args.tuned, args, "compare")
local plan = extract.plan(base, tuned, differing_pairs(base, tuned), {
  rank = args.rank, targets = targets(), matrices_only = args.matrices_only or false, dtype = dtype,
})
if #plan.parts == 0 then
  cbk.fail("value", ("no linear layer%s differs between '%s' and '%s': there is nothing for LoRA"):format(
    args.target_modules and " of --target-modules" or "", args.base, args.tuned))
end
warn_of_left_out(plan.left_out)
local written, forecast = cli.commit(cbk.create(target, {
  root = plan.root, format = "safetensors", overwrite = args.overwrite,
  companions = { ["adapter_config.json"] = cbk.config.dump(plan.config, "json", { indent = 2 }) },
}), args)
local groups, total = energies(plan.parts)
if written then print_energies(groups, total) end
cli.say(args, ("matrices for %s and %s %s saved in %s"):format(numbers.counted(#plan.parts, "layer"),
  numbers.counted(#plan.whole, "whole tensor"), written and "were" or "would be", args.output))
local listed = {}
for i, group in ipairs(groups) do
  listed[i] = cbk.dict { { "name", group.name }, { "layers", group.layers }, { "energy", group.all }, { "kept", group.kept } }
end
cli.print_result(args, written, {
  { "checkpoint", target }, { "rank", plan.config.r }, { "groups", cbk.list(listed) }, { "modules_to_save", plan.config.modules_to_save },
  { "left_out", cbk.list(plan.left_out) },
}, forecast)
