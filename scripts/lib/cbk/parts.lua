-- Recognises files that are one part of a checkpoint, written as several files by a training framework or a sharding tool: by their
-- names, by the files beside them, and by their content. A part can be opened like any file, but it is not the whole checkpoint.

local cbk = require "cbk"

local parts = {}

---@class CheckpointPart
---@field number? integer   from 1
---@field count? integer
---@field what string       what it is a part of

local function is_dict(value) return cbk.kind(value) == "dict" end

---The numbers in the names of a folder that have a pattern: how many there are, and how many are smaller than each.
---@param folder string
---@param pattern string   captures the number
---@return { count: integer, below: table<number, integer> }
local function numbers_in(folder, pattern)
  local found, below = {}, {}
  for _, name in ipairs(cbk.fs.is_dir(folder) and cbk.fs.list(folder) or {}) do found[#found + 1] = tonumber((name:match(pattern))) end
  table.sort(found)
  for i, number in ipairs(found) do below[number] = below[number] or i - 1 end
  return { count = #found, below = below }
end

---A part among the files beside it: their names have one pattern and differ in a number. Nil if it is alone.
---@param folder string
---@param name string
---@param pattern string   captures the number
---@param what string
---@param known table      of `parts.named`
---@return CheckpointPart|nil
local function among(folder, name, pattern, what, known)
  local own = name:match(pattern)
  if not own then return nil end
  local place = folder .. "\0" .. pattern
  known[place] = known[place] or numbers_in(folder, pattern)
  local numbers = known[place]
  return numbers.count > 1 and { number = (numbers.below[tonumber(own)] or 0) + 1, count = numbers.count, what = what } or nil
end

---A part with a name that has its number and the number of parts.
local function stated(number, count, what)
  return tonumber(count) > 1 and { number = tonumber(number), count = tonumber(count), what = what } or nil
end

local SHARDS = "shards; open their index or folder"
local GGUF = "files of a GGUF model, each of which is read by itself"
local FOLDER = "; open their folder, in which they are joined"
local FSDP = "each rank's part of the tensors (FSDP)" .. FOLDER
local MEGATRON = "tensor- and pipeline-parallel parts (Megatron)" .. FOLDER
local ZERO = "partitions of DeepSpeed ZeRO" .. FOLDER

-- Recognises parts whose name has their number and the number of parts: functions of the name.
local STATED = {
  function(name)
    local number, count, suffix = name:match "%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)(%.[%w_]+)$"
    return number and stated(number, count, suffix == ".gguf" and GGUF or SHARDS)
  end,
  function(name)
    local world, rank = name:match "_world_size_(%d+)_rank_(%d+)%.%w+$"
    return world and stated(tonumber(rank) + 1, world, FSDP)
  end,
}

-- Patterns of names with a number alone, and what they are the names of.
local NUMBERED = {
  { "^consolidated%.(%d+)%.pth?$", "tensor-parallel parts (Meta)" .. FOLDER },
  { "zero_pp_rank_(%d+)_mp_rank_%d+_model_states%.pt$", ZERO },
  { "zero_pp_rank_(%d+)_mp_rank_%d+_optim_states%.pt$", ZERO },
  { "^layer_(%d+)%-model_%d+%-model_states%.pt$", "a file for each layer (DeepSpeed)" },
  { "^mp_rank_(%d+)_model_states%.pt$", "tensor-parallel parts (DeepSpeed)" },
  { "%-model_part%-(%d+)", "model-parallel parts (fairscale)" },
}
local NUMBERED_FOLDER = { "^mp_rank_(%d+)", MEGATRON }

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
    return count > 1 and { count = count, what = MEGATRON }
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
    return empty > 0 and 2 * empty >= count
      and { what = "DeepSpeed ZeRO stage 3: the weights here are placeholders without elements" .. FOLDER }
  end,
  function(root)
    local state = is_dict(root.optimizer_state_dict) and root.optimizer_state_dict
    local partitions = state and state.partition_count
    if cbk.kind(partitions) == "list" then partitions = partitions[1] end
    return type(partitions) == "number" and partitions > 1 and { count = partitions, what = ZERO }
  end,
}

---The part that a file is, by its name and the files beside it.
---@param path string
---@param known? table   what was found out about folders, for further parts in them
---@return CheckpointPart|nil
function parts.named(path, known)
  known = known or {}
  local absolute = cbk.fs.absolute(path)
  local folder, name = cbk.fs.dirname(absolute), cbk.fs.basename(absolute)
  for _, says in ipairs(STATED) do
    local part = says(name)
    if part then return part end
  end
  for _, one in ipairs(NUMBERED) do
    local part = among(folder, name, one[1], one[2], known)
    if part then return part end
  end
  return among(cbk.fs.dirname(folder), cbk.fs.basename(folder), NUMBERED_FOLDER[1], NUMBERED_FOLDER[2], known)
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
---@param known? table   as in `parts.named`
---@return CheckpointPart|nil
function parts.of(checkpoint, known)
  if checkpoint.format:find "%-sharded$" or checkpoint.format == "tensorflow" or cbk.fs.is_dir(checkpoint.path) then return nil end
  return parts.named(checkpoint.path, known) or by_content(checkpoint)
end

---Whether a name is that of an index of shards, also of a variant: "model.safetensors.index.fp16.json".
---@param name string
---@return boolean
function parts.is_index(name) return name:find "%.index%.json$" ~= nil or name:find "%.index%.[^.]+%.json$" ~= nil end

---The parts in a folder of several files, by the name of the first; nil if one of the files is not a part.
---@param folder string
---@return CheckpointPart|nil
function parts.in_folder(folder)
  local first, known = nil, {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    if parts.is_index(name) then return nil end -- an index joins the files
    local part = cbk.format_of_name(name) and parts.named(cbk.fs.join(folder, name), known)
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
