-- Recognises files that are one part of a checkpoint, written as several files by a training framework or a sharding tool: by their
-- names, by the files beside them, and by their content. A part can be opened like any file, but it is not the whole checkpoint.

local cbk = require "cbk"

local parts = {}

---@class CheckpointPart
---@field number? integer   from 1
---@field count? integer
---@field what string       what it is a part of

local function is_dict(value) return cbk.kind(value) == "dict" end

---A part among the files beside it: their names have one pattern and differ in a number. Nil if it is alone.
---@param folder string
---@param name string
---@param pattern string   captures the number
---@param what string
---@return CheckpointPart|nil
local function among(folder, name, pattern, what)
  local own, count, before = name:match(pattern), 0, 0
  for _, other in ipairs(own and cbk.fs.is_dir(folder) and cbk.fs.list(folder) or {}) do
    local number = other:match(pattern)
    if number then count = count + 1 end
    if number and tonumber(number) < tonumber(own) then before = before + 1 end
  end
  return count > 1 and { number = before + 1, count = count, what = what } or nil
end

---A part with a name that has its number and the number of parts.
local function stated(number, count, what)
  return tonumber(count) > 1 and { number = tonumber(number), count = tonumber(count), what = what } or nil
end

local SHARDS = "shards; open their index or folder"
local GGUF = "files of a GGUF model, each of which is read by itself"
local FSDP = "each rank's part of the tensors (FSDP)"

-- Patterns of part names: functions of the name, the path of its folder, and the path of the folder above.
local NAMES = {
  function(name)
    local number, count, suffix = name:match "%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)(%.[%w_]+)$"
    return number and stated(number, count, suffix == ".gguf" and GGUF or SHARDS)
  end,
  function(name)
    local world, rank = name:match "_world_size_(%d+)_rank_(%d+)%.%w+$"
    return world and stated(tonumber(rank) + 1, world, FSDP)
  end,
  function(name, folder) return among(folder, name, "^consolidated%.(%d+)%.pth?$", "tensor-parallel parts (Meta)") end,
  function(name, folder) return among(folder, name, "zero_pp_rank_(%d+)_mp_rank_%d+_model_states%.pt$", "partitions of DeepSpeed ZeRO") end,
  function(name, folder) return among(folder, name, "zero_pp_rank_(%d+)_mp_rank_%d+_optim_states%.pt$", "partitions of DeepSpeed ZeRO") end,
  function(name, folder) return among(folder, name, "^layer_(%d+)%-model_%d+%-model_states%.pt$", "a file for each layer (DeepSpeed)") end,
  function(name, folder) return among(folder, name, "^mp_rank_(%d+)_model_states%.pt$", "tensor-parallel parts (DeepSpeed)") end,
  function(name, folder) return among(folder, name, "%-model_part%-(%d+)", "model-parallel parts (fairscale)") end,
  function(_, folder, above)
    return among(above, cbk.fs.basename(folder), "^mp_rank_(%d+)", "tensor- and pipeline-parallel parts (Megatron)")
  end,
}

local function count_of(record, field)
  local value = record and record[field]
  return type(value) == "number" and value > 1 and value or 1
end

---Megatron's `args`; nil if the file has none.
local function args_of(root)
  local args = root.args
  if type(args) ~= "userdata" then return nil end
  if cbk.kind(args) == "object" then args = args.state end
  return is_dict(args) and args or nil
end

-- Recognises parts by content: functions of the tree.
local CONTENTS = {
  function(root)
    local args = args_of(root)
    local count = count_of(args, "tensor_model_parallel_size") * count_of(args, "pipeline_model_parallel_size")
    return count > 1 and { count = count, what = "tensor- and pipeline-parallel parts (Megatron)" }
  end,
  function(root)
    local is_deepspeed = root.ds_version ~= nil and is_dict(root.module)
    local count = is_deepspeed and count_of(root, "mp_world_size") or 1
    return count > 1 and { count = count, what = "tensor-parallel parts (DeepSpeed)" }
  end,
  function(root)
    if root.ds_version == nil or not is_dict(root.module) then return nil end
    local count, empty = 0, 0
    for _, tensor in cbk.tensors(root.module) do
      count, empty = count + 1, empty + (tensor:numel() == 0 and 1 or 0)
    end
    return empty > 0 and 2 * empty >= count and { what = "DeepSpeed ZeRO stage 3: the weights here are placeholders without elements" }
  end,
  function(root)
    local state = is_dict(root.optimizer_state_dict) and root.optimizer_state_dict
    local partitions = state and state.partition_count
    if cbk.kind(partitions) == "list" then partitions = partitions[1] end
    return type(partitions) == "number" and partitions > 1 and { count = partitions, what = "partitions of DeepSpeed ZeRO" }
  end,
}

---The part that a file is, by its name and the files beside it.
---@param path string
---@return CheckpointPart|nil
function parts.named(path)
  local absolute = cbk.fs.absolute(path)
  local folder = cbk.fs.dirname(absolute)
  for _, says in ipairs(NAMES) do
    local part = says(cbk.fs.basename(absolute), folder, cbk.fs.dirname(folder))
    if part then return part end
  end
end

local function by_content(checkpoint)
  local metadata = checkpoint.metadata
  if is_dict(metadata) and metadata.DCP_SHARDING_INFO ~= nil then
    return { what = "a torch.distributed.checkpoint folder: its tensors may be the first pieces of larger ones" }
  end
  local root = checkpoint.root
  if not is_dict(root) then return nil end
  for _, says in ipairs(CONTENTS) do
    local part = says(root)
    if part then return part end
  end
end

---The part that an open file is; nil if it is not known to be one.
---@param checkpoint Checkpoint
---@return CheckpointPart|nil
function parts.of(checkpoint)
  if checkpoint.format:find "%-sharded$" or checkpoint.format == "tensorflow" then return nil end
  return parts.named(checkpoint.path) or by_content(checkpoint)
end

---Whether a name is that of an index of shards, also of a variant: "model.safetensors.index.fp16.json".
---@param name string
---@return boolean
function parts.is_index(name) return name:find "%.index%.json$" ~= nil or name:find "%.index%.[^.]+%.json$" ~= nil end

---The parts in a folder of several files, by the name of the first; nil if one of the files is not a part.
---@param folder string
---@return CheckpointPart|nil
function parts.in_folder(folder)
  local first
  for _, name in ipairs(cbk.fs.list(folder)) do
    if parts.is_index(name) then return nil end -- an index joins the files
    local part = cbk.format_of_name(name) and parts.named(cbk.fs.join(folder, name))
    if cbk.format_of_name(name) and not part then return nil end
    first = first or part
  end
  return first
end

---"part 1 of 2: tensor-parallel parts (Meta)"
---@param part CheckpointPart
---@return string
function parts.text(part)
  local place = part.number and part.count and ("part %d of %d"):format(part.number, part.count)
    or part.count and ("one of %d parts"):format(part.count) or "a part"
  return ("%s: %s"):format(place, part.what)
end

return parts
