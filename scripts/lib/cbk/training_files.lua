-- Files that trainers write beside a model and that have no weights: `optimizer.pt`, `scheduler.pt`, `rng_state.pth`. They are known by
-- what is in them, as trainers give them any name.

local cbk = require "cbk"
local optimizers = require "cbk.optimizers"

local training_files = {}

-- Names in the states of PyTorch's schedules and gradient scalers, and of random number generators as the Trainer of Hugging Face,
-- Accelerate and Megatron keep them.
local SCHEDULE = { "last_epoch", "base_lrs", "_last_lr", "_step_count" }
local SCALER = { "growth_factor", "backoff_factor", "growth_interval" }
local RANDOM = { "random_state", "numpy_random_seed", "torch_manual_seed", "python_rng_state", "random_rng_state", "np_rng_state",
  "torch_rng_state" }
local RANDOM_OF_TRAINER = { "python", "numpy", "cpu" }

---@param root any   as `Checkpoint:raw_root` returns it
---@param names string[]
local function count_of(root, names)
  local count = 0
  for _, name in ipairs(names) do count = count + (root[name] ~= nil and 1 or 0) end
  return count
end

---Whether a key has an optimizer, or is a part of the one that is the whole file.
---@param text string   the key
---@param found Optimizer[]
local function is_of_optimizer(text, found)
  for _, optimizer in ipairs(found) do
    local is_own = optimizer.path == "" and (text == "state" or text == "param_groups")
    if is_own or (optimizer.path .. "."):sub(1, #text + 1) == text .. "." then return true end
  end
  return false
end

---What has tensors beside the optimizers.
---@param root any
---@param found Optimizer[]
---@return { count: integer, floating: integer }   of tensors
local function tensors_beside(root, found)
  local out = { count = 0, floating = 0 }
  for key, value in cbk.raw_items(root) do
    local rows = not is_of_optimizer(cbk.key_text(key), found) and cbk.leaf_rows(cbk.dict { { "value", value } }) or {}
    for i = 1, #rows do
      local row = rows[i]
      if row.shape then
        out.count, out.floating = out.count + 1, out.floating + (cbk.dtype(row.type).floating and 1 or 0)
      end
    end
  end
  return out
end

---What a file of a trainer holds beside a model; nil if it may hold weights.
---@param root any   as `Checkpoint:raw_root` returns it
---@return string|nil   "the states of an optimizer"
function training_files.content(root)
  if not optimizers.is_dict(root) then return nil end
  local found = optimizers.find(root)
  local is_random = count_of(root, RANDOM) > 0 or count_of(root, RANDOM_OF_TRAINER) > 1
  local is_schedule, is_scaler = count_of(root, SCHEDULE) > 1, count_of(root, SCALER) > 1
  if #found == 0 and not (is_random or is_schedule or is_scaler) then return nil end
  local beside = tensors_beside(root, found)
  if beside.floating == 0 and is_random then return "the states of random number generators" end
  if beside.count > 0 then return nil end
  if #found > 0 then return #found == 1 and "the states of an optimizer" or "the states of optimizers" end
  return is_schedule and "the state of a learning rate schedule" or "the state of a gradient scaler"
end

---What the checkpoints in a folder hold, if none of them may hold weights; nil of other folders.
---@param folder string
---@param reading table   options of cbk.open
---@return string[]|nil   "optimizer.pt (the states of an optimizer)"
function training_files.in_folder(folder, reading)
  local out = {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    local file = cbk.fs.join(folder, name)
    local is_file, container = pcall(cbk.container, file)
    if cbk.format_of_name(name) or is_file and container then
      local fine, checkpoint = pcall(cbk.open, file, reading)
      local content = fine and training_files.content(checkpoint:raw_root())
      if not content then return nil end
      out[#out + 1] = ("%s (%s)"):format(cbk.shown(name), content)
    end
  end
  return #out > 0 and out or nil
end

return training_files
