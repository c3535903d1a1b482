-- The tensors of a checkpoint by content: tensors with the same elements, in any order and in the coarser of two dtypes, are in one
-- class.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local names = require "cbk.infer.names"
local placed = require "cbk.placed"

local content = {}

---@class Item   A tensor of one side.
---@field side Side
---@field key string
---@field tensor Tensor
---@field shape integer[]
---@field numel integer
---@field dtype string
---@field template string
---@field numbers integer[]
---@field order integer     its place in the checkpoint
---@field rule? InferredRule
---@field is_constant? boolean
---@field is_numbered_apart? boolean   the other side has it in a layer with another number, which other models may not have
---@field on_read fun(key: string, bytes: integer)
---@field sums table<string, ffi.cdata*>   Tensor:content by dtype

---@class Inventory
---@field items Item[]
---@field unnamed Item[]   with characters in their keys that only templates may use
---@field by_key table<string, Item>
---@field by_template table<string, Item[]>
---@field by_prefix table<string, string[]>   templates by the text before their first number
---@field dtypes table<string, boolean>

local FINER = { float64 = 4, float32 = 3, bfloat16 = 2, float16 = 2, float8_e4m3fn = 1, float8_e5m2 = 1 }

---@param side Side
---@param tensors Dict   key to tensor
---@param on_read? fun(key: string, bytes: integer)   called after each tensor that is read
---@return Inventory
function content.inventory(side, tensors, on_read)
  local out, keys = { items = {}, unnamed = {}, by_key = {}, by_template = {}, by_prefix = {}, dtypes = {} }, {}
  local function is_wanted(tensor) return kinds.is_tensor(tensor) and tensor:numel() > 0 end
  local function is_nameable(key) return not key:find "[%z\1\2]" end
  for key, tensor in cbk.items(tensors) do
    if is_wanted(tensor) and is_nameable(key) then keys[#keys + 1] = { key = key, shape = table.concat(tensor:shape(), ",") } end
  end
  local counted = names.counted(keys)
  for key, tensor in cbk.items(tensors) do
    if is_wanted(tensor) and not is_nameable(key) then
      table.insert(out.unnamed, { side = side, key = key, tensor = tensor, shape = tensor:shape(), dtype = tensor.dtype })
    elseif is_wanted(tensor) then
      local item = { side = side, key = key, tensor = tensor, shape = tensor:shape(), numel = tensor:numel(), dtype = tensor.dtype,
        order = #out.items + 1, sums = {}, on_read = on_read or function() end }
      item.template, item.numbers = names.template(key, counted)
      out.items[#out.items + 1], out.by_key[key], out.dtypes[item.dtype] = item, item, true
      if not out.by_template[item.template] then
        out.by_template[item.template] = {}
        local prefix = names.before(item.template, 1)
        if prefix then
          out.by_prefix[prefix] = out.by_prefix[prefix] or {}
          table.insert(out.by_prefix[prefix], item.template)
        end
      end
      table.insert(out.by_template[item.template], item)
    end
  end
  return out
end

---How many numbers each kind of tensor has in the first place of its keys: the numbers of layers are among them.
---@param inventory Inventory
---@return table<integer, true>
function content.depths(inventory)
  local out = {}
  for _, items in pairs(inventory.by_template) do
    local seen, count = {}, 0
    for _, item in ipairs(items) do
      local first = item.numbers[1]
      if first and not seen[first] then seen[first], count = true, count + 1 end
    end
    if count > 0 then out[count] = true end
  end
  return out
end

local cache = setmetatable({}, { __mode = "v" }) -- of tensors that are tied

---The sum of the hashes of an item's elements in a dtype.
---@param item Item
---@param dtype string
---@return ffi.cdata*
function content.sum(item, dtype)
  local known = item.sums[dtype]
  if known then return known end
  local place = placed.at(item.tensor)
  local id = place and place .. " " .. dtype
  local same = id and cache[id]
  if same and same.tensor:same(item.tensor) then
    item.sums[dtype] = same.sums[dtype]
  else
    item.sums[dtype] = (dtype == item.dtype and item.tensor or item.tensor:to(dtype)):content()
    if id then cache[id] = item end
    item.on_read(item.key, item.tensor:nbytes())
  end
  return item.sums[dtype]
end

---Whether all elements are equal, so that their order is unknown.
---@param item Item
---@return boolean
function content.is_constant(item)
  if item.is_constant == nil then
    local first = item.tensor:reshape({ -1 }):slice(0, 0, 1):content()
    item.is_constant = item.numel > 1 and first * item.numel == content.sum(item, item.dtype)
  end
  return item.is_constant
end

---The coarser of two dtypes; nil if elements in one cannot be converted to the other exactly.
---@param a string
---@param b string
---@return string|nil
function content.common(a, b)
  if a == b then return a end
  local fine_a, fine_b = FINER[a], FINER[b]
  if not (fine_a and fine_b) or fine_a == fine_b then return nil end
  return fine_a < fine_b and a or b
end

---Whether two items have the same elements in any order.
---@param a Item
---@param b Item
function content.same(a, b)
  local dtype = a.numel == b.numel and content.common(a.dtype, b.dtype)
  return dtype and content.sum(a, dtype) == content.sum(b, dtype) or false
end

---The items that have the same elements, by class.
---@param left Inventory
---@param right Inventory
---@return { left: Item[], right: Item[] }[]   the classes with items of both sides
function content.classes(left, right)
  local by_id, order = {}, {}
  local function add(item, others)
    local has = {}
    for dtype in pairs(others) do
      local common = content.common(item.dtype, dtype)
      if common and not has[common] then
        has[common] = true
        local id = ("%s %d %s"):format(common, item.numel, tostring(content.sum(item, common)))
        if not by_id[id] then
          by_id[id] = { left = {}, right = {} }
          order[#order + 1] = by_id[id]
        end
        table.insert(by_id[id][item.side], item)
      end
    end
  end
  for _, item in ipairs(left.items) do add(item, right.dtypes) end
  for _, item in ipairs(right.items) do add(item, left.dtypes) end
  local out = {}
  for _, class in ipairs(order) do
    if #class.left > 0 and #class.right > 0 then out[#out + 1] = class end
  end
  return out
end

return content
