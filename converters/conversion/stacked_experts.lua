-- Experts that a file has in one tensor: taken apart, and named as the model's class names them. Files have them single
-- (mlp.experts.3.up_proj.weight), stacked (mlp.switch_mlp.up_proj.weight, as MLX writes them), or stacked with gates and products joined
-- (mlp.experts.gate_up_proj: the modules of transformers 5; transposed in Qwen3-VL and Llama 4).

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"

local stacked_experts = {}

-- Each single tensor takes some memory, and a hostile file has millions in a few bytes. Models have matrices of megabytes.
local FEW, LEAST_BYTES = 4096, 4096 -- so many tensors of any size; others have as many bytes in the file, on average
local MOST = 100000 -- the largest model has 60 layers of 384 experts, three matrices each
local SETS = { ["experts."] = true, ["switch_mlp."] = true } -- names of the module with all experts
local JOINED = "gate_up_proj"
-- The names of an expert's three matrices: that of the output, and those whose product it gets.
local NAMES = { { "gate_proj", "up_proj", "down_proj" }, { "w1", "w3", "w2" } }
local IS_NAME = { [JOINED] = true }
for _, list in ipairs(NAMES) do
  for _, name in ipairs(list) do IS_NAME[name] = true end
end
-- The names of the module with the router and the experts.
local PLACES = { "mlp.", "block_sparse_moe." }

---@class ExpertStack   One layer's experts in a file.
---@field place string    before the name of the module with all experts
---@field keys string[]   of the file
---@field parts table<string, { key: string, tensor: Tensor }>   by the names of matrices

---A key without its last part, which is returned, too.
local function cut(key)
  local last = naming.last(key)
  return key:sub(1, -#last - 2), last
end

---The place and the matrix that a key names; nil if it is no stack's.
---@return string|nil place, string|nil name
local function named_by(key)
  local before, name = cut(key)
  if name == "weight" then before, name = cut(before) end
  if not IS_NAME[name] then return nil end
  local set = naming.last(before) .. "."
  if SETS[set] then return before:sub(1, -#set), name end
end

local function is_stack(value) return kinds.is_tensor(value) and value:dim() == 3 and value:numel() > 0 end

---Whether a name is that of a stack.
local function is_name(key) return named_by(key) ~= nil end

---The tree with numbers in place of stacks of codes, which have no scales for each expert.
---@param tree Dict
---@param config Dict|nil
---@return Dict tree
---@return QuantisedWeight[] weights   what was replaced
local function with_numbers(tree, config)
  local has_codes = false
  for key, value in cbk.items(tree) do
    has_codes = has_codes or is_stack(value) and quantised.is_narrow(value.dtype) and is_name(tostring(key))
  end
  if not has_codes then return tree, {} end
  local number_at, weights = dequantised.some(tree, config, is_name)
  local out, is_part = cbk.dict(), {}
  for _, weight in ipairs(weights) do
    for _, part in ipairs(weight.parts) do is_part[part] = true end
  end
  for key, value in cbk.items(tree) do
    if not is_part[tostring(key)] then out[key] = number_at[tostring(key)] or value end
  end
  return out, weights
end

---The stacks of a tree, in its order.
---@param tree Dict
---@return ExpertStack[]
local function stacks_in(tree)
  local out, at = {}, {}
  for key, value in cbk.items(tree) do
    local place, name = nil, nil
    if is_stack(value) and not quantised.is_narrow(value.dtype) then place, name = named_by(tostring(key)) end
    if place then
      if not at[place] then
        at[place] = { place = place, keys = {}, parts = {} }
        out[#out + 1] = at[place]
      end
      local one = at[place]
      one.keys[#one.keys + 1], one.parts[name] = key, { key = key, tensor = value }
    end
  end
  return out
end

local function is_shape(tensor, ...)
  local shape, given = tensor:shape(), { ... }
  for i = 1, 3 do
    if shape[i] ~= given[i] then return false end
  end
  return true
end

---The stacks of gates, of what is multiplied with them, and of outputs, each (experts, rows, columns) as in a Linear; nil if the shapes
---do not go together.
---@param stack ExpertStack
---@return { key: string, tensor: Tensor }[]|nil
local function matrices_of(stack)
  local parts = stack.parts
  for _, names in ipairs(NAMES) do
    local gate, up, down = parts[names[1]], parts[names[2]], parts[names[3]]
    if #stack.keys == 3 and gate and up and down then
      local number, inner, hidden = unpack(gate.tensor:shape())
      local fits = is_shape(up.tensor, number, inner, hidden) and is_shape(down.tensor, number, hidden, inner)
      return fits and { gate, up, down } or nil
    end
  end
  local both, down = parts[JOINED], parts.down_proj
  if #stack.keys ~= 2 or not both or not down then return nil end
  local number, rows, columns = unpack(down.tensor:shape())
  local joined, output = both.tensor, down.tensor
  if is_shape(joined, number, columns, 2 * rows) then
    joined, output, rows, columns = joined:transpose(1, 2), output:transpose(1, 2), columns, rows
  end
  if not is_shape(joined, number, 2 * columns, rows) then return nil end
  return { { key = both.key, tensor = joined:slice(1, 0, columns) }, { key = both.key, tensor = joined:slice(1, columns, 2 * columns) },
    { key = down.key, tensor = output } }
end

---The bytes of a tensor's storage that may be in a file, which are fewer than its own if elements repeat.
local function stored_bytes(tensor)
  local storage = tensor:storage()
  return storage and math.min(tensor:nbytes(), storage.numel * cbk.dtype(tensor.dtype).size) or tensor:nbytes()
end

---The stacks that can be taken apart, with their matrices.
---@param tree Dict
local function complete_stacks(tree)
  local out, count, bytes = {}, 0, 0
  for _, stack in ipairs(stacks_in(tree)) do
    stack.matrices = matrices_of(stack)
    if stack.matrices then
      count = count + 3 * stack.matrices[1].tensor:shape()[1]
      for _, part in pairs(stack.parts) do bytes = bytes + stored_bytes(part.tensor) end
      out[#out + 1] = stack
    end
  end
  return count <= math.min(MOST, math.max(FEW, bytes / LEAST_BYTES)) and out or {}
end

---@class ExpertSpelling
---@field names string[]    of an expert's matrices
---@field place? string     the name of the module with the experts; nil: as in the file

---A key before which the module with the experts is called otherwise.
---@param key string
---@param from string[]   names that the module has
---@param to string
local function moved(key, from, to)
  for _, name in ipairs(from) do
    local before, rest = key:match("^(.-%f[%w_])" .. name:gsub("%.", "%%.") .. "(.*)$")
    if before and (rest:find "^experts%." or rest:find "^gate%.") then return before .. to .. rest end
  end
  return key
end

---The tree with single experts; nil if two keys become one.
---@param tree Dict
---@param stacks ExpertStack[]
---@param spelling ExpertSpelling
---@param most? integer   experts of each stack; nil: all
---@return Dict|nil out
---@return table<string, string> origin   the tree's key for each new one
local function taken_apart(tree, stacks, spelling, most)
  local out, origin, of_key = cbk.dict(), {}, {}
  for _, stack in ipairs(stacks) do
    for i, key in ipairs(stack.keys) do of_key[key] = { stack = stack, is_first = i == 1 } end
  end
  local is_clash = false
  local function put(key, value, from)
    local new = spelling.place and type(key) == "string" and moved(key, PLACES, spelling.place) or key
    is_clash = is_clash or out[new] ~= nil
    out[new], origin[tostring(new)] = value, tostring(from)
  end
  for key, value in cbk.items(tree) do
    local one = of_key[key]
    if not one then put(key, value, key) end
    for k, matrix in ipairs(one and one.is_first and one.stack.matrices or {}) do
      local number, rows, columns = unpack(matrix.tensor:shape())
      for e = 0, math.min(number, most or number) - 1 do
        put(("%sexperts.%d.%s.weight"):format(one.stack.place, e, spelling.names[k]),
          matrix.tensor:slice(0, e, e + 1):reshape { rows, columns }, matrix.key)
      end
    end
  end
  return not is_clash and out or nil, origin
end

---The tree with a tensor for each expert's matrix, if a class says that it has them so. Lazy: the new tensors are views.
---@param stored Dict
---@param mistakes_of fun(tree: Dict): number|nil   how many names are not the class's; nil: no class is known
---@param config Dict|nil   of the checkpoint: which numbers quantised weights are
---@return Dict tree
---@return table<string, string>|nil origin   the tree's key for each new one; nil: nothing was changed
---@return string[] stacked                   the keys that were taken apart
---@return QuantisedWeight[] weights          those of them that were codes, and are numbers now
function stacked_experts.single(stored, mistakes_of, config)
  local tree, weights = with_numbers(stored, config)
  local stacks = complete_stacks(tree)
  local least = #stacks > 0 and mistakes_of(tree) or 0
  local best
  for _, names in ipairs(least > 0 and NAMES or {}) do
    for _, place in ipairs { false, unpack(PLACES) } do
      local spelling = { names = names, place = place or nil }
      local out = taken_apart(tree, stacks, spelling, 1) -- the others have the same names but for the number
      local count = out and mistakes_of(out)
      if count and count < least then best, least = spelling, count end
    end
  end
  if not best then return stored, nil, {}, {} end
  local stacked = {}
  for _, stack in ipairs(stacks) do
    for _, key in ipairs(stack.keys) do stacked[#stacked + 1] = key end
  end
  local out, origin = taken_apart(tree, stacks, best)
  if not out then return stored, nil, {}, {} end
  return out, origin, stacked, weights
end

---What was done, for people.
---@param stacked string[]
---@return string
function stacked_experts.text(stacked) return "experts are taken out of " .. naming.folded(stacked) end

return stacked_experts
