-- What the weights of one checkpoint are like, and how they differ from those of the one before: one pass over both, tensor by tensor.

local cbk = require "cbk"
local extents = require "cbk.extents"
local optimizers = require "cbk.optimizers"
local training_state = require "cbk.training_state"
local values = require "cbk.diff.values"
local weights = require "converters.conversion.weights"

local measure = {}

---@class OpenedCheckpoint   Stays open until the next one was compared with it.
---@field path string           as it was named: a folder or a file
---@field checkpoint Checkpoint
---@field rows LeafRows        of everything in it
---@field chosen integer[]     the rows of the tensors that are watched
---@field is_chosen table<integer, boolean>
---@field bytes integer        of those
---@field norms table<integer, number>   by rows, when it was measured

---@class MeasuredTensor
---@field key string
---@field count? integer    NaN and infinite elements
---@field moved? number     the norm of the difference over the norm that it had before
---@field before? string    shape or dtype
---@field after? string

---@class Measured
---@field tensors integer
---@field bytes integer
---@field norm number             of all floating tensors that are watched; finite elements
---@field moved number|nil        of those that both have; nil without one before
---@field nan integer
---@field inf integer
---@field learning_rates string[]
---@field loss_scale string|nil
---@field added string[]          keys
---@field removed string[]
---@field shapes MeasuredTensor[]   that changed
---@field dtypes MeasuredTensor[]
---@field broken MeasuredTensor[]   with NaN or infinite elements that the one before did not have
---@field moves MeasuredTensor[]    of each tensor that both have
---@field unreadable { count: integer, why: string|nil }

local OPTIMIZER = "optimizer.pt" -- that Hugging Face's Trainer writes beside the weights

---Everything in a checkpoint, and the optimizer's states in a file beside the weights.
local function whole_root(path, checkpoint, reading)
  local file = cbk.fs.is_dir(path) and cbk.fs.beside(path, OPTIMIZER)
  if not file or #checkpoint.files == 1 and cbk.fs.basename(checkpoint.files[1]) == OPTIMIZER then return checkpoint:raw_root() end
  local out = cbk.copy(checkpoint:raw_root())
  out[OPTIMIZER] = cbk.open(file, reading):raw_root()
  return out
end

---@param path string
---@param reading table    options of `cbk.open`
---@param is_all boolean   also tensors that are not the model's
---@return OpenedCheckpoint
function measure.open(path, reading, is_all)
  local checkpoint = cbk.open(path, reading)
  local rows = cbk.leaf_rows(is_all and whole_root(path, checkpoint, reading) or checkpoint:raw_root())
  local place = is_all and "" or weights.place(checkpoint:raw_root())
  local prefix = place == "" and "" or place .. "."
  local out = { path = path, checkpoint = checkpoint, rows = rows, chosen = {}, is_chosen = {}, bytes = 0, norms = {} }
  for i = 1, #rows do
    local row = rows:path(i):sub(1, #prefix) == prefix and rows[i]
    local is_own = row and (is_all or not weights.is_state(row.path:sub(#prefix + 1):match "^[^.]*"))
    if is_own and row.shape then
      out.chosen[#out.chosen + 1], out.is_chosen[i] = i, true
      if not row.tied_to then out.bytes = out.bytes + row.bytes end
    end
  end
  if #out.chosen == 0 then cbk.fail("missing", ("'%s' has no tensors%s"):format(cbk.shown(path), is_all and "" or " of a model")) end
  return out
end

-- --- training

---The value in a file that Hugging Face's Trainer writes beside the weights; nil if there is none that can be read.
local function beside(path, name, of)
  if not cbk.fs.is_dir(path) then return nil end
  local fine, found = pcall(function()
    local file = cbk.fs.beside(path, name)
    return file and of(cbk.open(file))
  end)
  return fine and found or nil
end

local function rates_of(root)
  local out = {}
  for _, optimizer in ipairs(optimizers.find(root)) do
    for _, rate in ipairs(training_state.learning_rates(optimizer) or {}) do out[#out + 1] = rate end
  end
  return #out > 0 and out or nil
end

---@param opened OpenedCheckpoint
---@return string[] learning_rates, string|nil loss_scale
local function training_of(opened)
  local path = opened.path
  local rates = rates_of(opened.checkpoint:raw_root())
    or beside(path, OPTIMIZER, function(checkpoint) return rates_of(checkpoint:raw_root()) end)
  local scale = training_state.loss_scale(opened.rows)
    or beside(path, "scaler.pt", function(checkpoint) return checkpoint:has "scale" and tostring(checkpoint:get "scale") end)
  return rates or {}, scale or nil
end

-- --- tensors

local function is_measured(row)
  return not row.problem and not row.tied_to and not row.type:find "^complex" and cbk.dtype(row.type).floating
end

---The norm of the difference of two tensors of one shape, and how many elements are NaN or infinite only in the new one.
---@param old Tensor
---@param new Tensor
---@param old_norm number
---@param norm number   of the new one
local function distance(old, new, old_norm, norm)
  local difference = old:compare(new)
  local broken = difference.nan_b + difference.infinite
  if difference.different == 0 or not difference.rel_norm then return 0, broken end
  if difference.rel_norm == math.huge then return old_norm, broken end -- all weights have become 0
  return difference.rel_norm * norm, broken
end

---A measuring in progress.
---@class Measuring: Measured
---@field squares number     of the norm
---@field common number      squares of the norms that the compared tensors had before
---@field far number         squares of the distances
---@field compared integer   tensors

---Compares a row with that of the checkpoint before.
---@param m Measuring
---@param old_norm number|nil   if it is known
local function compare_row(m, row, tensor, stats, old_row, old_tensor, old_norm)
  if extents.shape(row.shape) ~= extents.shape(old_row.shape) then
    m.shapes[#m.shapes + 1] = { key = row.path, before = extents.shape(old_row.shape), after = extents.shape(row.shape) }
  elseif row.type ~= old_row.type then
    m.dtypes[#m.dtypes + 1] = { key = row.path, before = old_row.type, after = row.type }
  end
  local can_compare = stats and extents.shape(row.shape) == extents.shape(old_row.shape) and not old_row.problem
    and not old_row.type:find "^complex"
  if not can_compare then return stats and stats.nan + stats.inf or 0 end
  old_norm = old_norm or old_tensor:stats().norm or 0
  local far, broken = distance(old_tensor, tensor, old_norm, stats.norm or 0)
  m.common, m.far, m.compared = m.common + old_norm ^ 2, m.far + far ^ 2, m.compared + 1
  if old_norm > 0 then m.moves[#m.moves + 1] = { key = row.path, moved = far / old_norm } end
  return broken
end

---@param opened OpenedCheckpoint
---@param m Measuring
---@param i integer   of a row
---@param previous OpenedCheckpoint|nil
---@param k integer|nil   its row in that
local function measure_row(opened, m, i, previous, k)
  local row = opened.rows[i]
  if row.problem then m.unreadable = { count = m.unreadable.count + 1, why = m.unreadable.why or row.problem } end
  if previous and not k then m.added[#m.added + 1] = row.path end
  local tensor = opened.rows:value(i)
  local stats = is_measured(row) and tensor:stats() or nil
  local broken = stats and stats.nan + stats.inf or 0
  if stats then
    opened.norms[i] = stats.norm or 0
    m.squares, m.nan, m.inf = m.squares + opened.norms[i] ^ 2, m.nan + stats.nan, m.inf + stats.inf
  end
  if previous and k then broken = compare_row(m, row, tensor, stats, previous.rows[k], previous.rows:value(k), previous.norms[k]) end
  if broken > 0 and stats.nan + stats.inf > 0 then m.broken[#m.broken + 1] = { key = row.path, count = stats.nan + stats.inf } end
end

---Keys of tensors that only the checkpoint before has.
local function removed_keys(opened, previous)
  local out, counterpart = {}, values.matcher(previous.rows, opened.rows)
  for _, i in ipairs(previous.chosen) do
    local k = counterpart(i)
    if not (k and opened.is_chosen[k]) then out[#out + 1] = previous.rows:path(i) end
  end
  return out
end

---@param opened OpenedCheckpoint
---@param previous OpenedCheckpoint|nil
---@param on_read fun(key: string, bytes: integer)
---@return Measured
function measure.of(opened, previous, on_read)
  local m = { tensors = #opened.chosen, bytes = opened.bytes, squares = 0, common = 0, far = 0, compared = 0, nan = 0, inf = 0,
    added = {}, removed = {}, shapes = {}, dtypes = {}, broken = {}, moves = {}, unreadable = { count = 0 } }
  local counterpart = previous and values.matcher(opened.rows, previous.rows)
  for _, i in ipairs(opened.chosen) do
    local k = counterpart and counterpart(i)
    measure_row(opened, m, i, previous, k and previous.is_chosen[k] and k or nil)
    on_read(opened.rows:path(i), opened.rows[i].tied_to and 0 or opened.rows[i].bytes)
  end
  if previous then m.removed = removed_keys(opened, previous) end
  m.norm = math.sqrt(m.squares)
  if previous and m.compared > 0 then
    m.moved = m.far == 0 and 0 or m.common > 0 and math.sqrt(m.far / m.common) or nil
  end
  m.learning_rates, m.loss_scale = training_of(opened)
  return m
end

return measure
