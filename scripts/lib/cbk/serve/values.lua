-- Values of a checkpoint as `cbk serve` describes them, and the steps that lead to them.

local cbk = require "cbk"
local stored_form = require "cbk.stored_form"
local is_tensor = require("cbk.tensor_kinds").is_tensor

local values = {}

local DICTS = { dict = true, ordereddict = true, defaultdict = true, counter = true }
local SEQUENCES = { list = true, tuple = true, deque = true, set = true, frozenset = true, torch_size = true }
local TEXTS_OF = { ["gguf.texts"] = cbk.gguf.texts, ["tensorflow.tensor"] = cbk.tensorflow.texts }

---Whether a value is one.
---@param value any
---@return boolean
function values.is_dict(value) return DICTS[cbk.kind(value)] == true end

--- The texts of an object that is a list of them; nil for others.
local function texts_of(value)
  local read = cbk.kind(value) == "object" and TEXTS_OF[value.type]
  if not read or value.type == "tensorflow.tensor" and value.state.dtype ~= "string" then return nil end
  return cbk.list(read(value))
end

local function described_tensor(tensor)
  local out = cbk.dict {
    { "kind", tensor.role }, { "dtype", tensor.dtype }, { "shape", cbk.list(tensor:shape()) }, { "bytes", tensor:nbytes() },
    { "array", stored_form.is_narrow(tensor.dtype) and "float32" or tensor.dtype },
  }
  out.encoding, out.problem = (tensor:storage() or {}).encoding, tensor:problem()
  return out
end

local function described_object(object)
  local texts = texts_of(object)
  if texts then return cbk.dict { { "kind", "list" }, { "count", #texts } } end
  local kind = object.state ~= nil and cbk.kind(object.state) or "none"
  return cbk.dict { { "kind", "object" }, { "type", object.type }, { "repr", object.repr }, { "state", kind ~= "none" } }
end

---A value without its elements and entries.
---@param value any   as `cbk.raw` gives it
---@return Dict
function values.described(value)
  local kind = cbk.kind(value)
  if is_tensor(value) then return described_tensor(value) end
  if DICTS[kind] then return cbk.dict { { "kind", "dict" }, { "count", cbk.count(value) } } end
  if SEQUENCES[kind] then return cbk.dict { { "kind", kind }, { "count", cbk.count(value) } } end
  if kind == "object" then return described_object(value) end
  if kind == "bytes" or kind == "bytearray" then return cbk.dict { { "kind", "bytes" }, { "hex", cbk.hex(value.value) } } end
  if kind == "complex" then return cbk.dict { { "kind", kind }, { "value", cbk.list(value.value) } } end
  return cbk.dict { { "kind", kind }, { "value", value } }
end

---A key of a dict. Texts and whole numbers are themselves.
---@param key any   as `cbk.raw_items` gives it
---@return any
function values.key(key)
  local kind, items = cbk.kind(key), cbk.list()
  if kind == "str" or kind == "int" then return key end
  if kind ~= "tuple" then return values.described(key) end
  for _, item in cbk.raw_items(key) do items[#items + 1] = values.key(item) end
  return cbk.dict { { "kind", kind }, { "items", items } }
end

---The bytes of the texts in a [key] or [key, value].
---@param entry List
---@return integer
function values.text_bytes(entry)
  local key, value = entry[1], entry[2]
  local text = value and (value.hex or value.value)
  return (type(key) == "string" and #key or 0) + (type(text) == "string" and #text or 0)
end

-- --- steps

--- The value of a dict's key: text, a whole number, or text that says one.
local function entry_of(dict, key)
  local value = cbk.raw(dict, key)
  if value == nil and type(key) == "string" and key:find "^-?%d+$" then return cbk.raw(dict, tonumber(key)) end
  return value
end

local function item_of(list, key)
  local position = tonumber(key)
  return position and cbk.raw(list, position + 1)
end

--- A child by its key, or by several keys with dots between them: the longest that there is counts first.
local function child(container, key)
  local kind = cbk.kind(container)
  local find = DICTS[kind] and entry_of or SEQUENCES[kind] and item_of
  if not find then return nil end
  local value = find(container, key)
  local stop = type(key) == "string" and #key or 0
  while value == nil do
    stop = stop > 0 and key:sub(1, stop):find "%.[^.]*$"
    if not stop then return nil end
    local outer = find(container, key:sub(1, stop - 1))
    value = outer ~= nil and child(outer, key:sub(stop + 1)) or nil
    stop = stop - 1
  end
  return value
end

local function nth_entry(dict, position)
  local count = 0
  for _, value in cbk.raw_items(dict) do
    if count == position then return value end
    count = count + 1
  end
end

---The value that a step leads to; nil if there is none.
---@param value any
---@param step any
---@return any
function values.step(value, step)
  if cbk.kind(step) ~= "dict" then return child(texts_of(value) or value, step) end
  if step.state then return value.state end
  return DICTS[cbk.kind(value)] and nth_entry(value, step.entry)
end

---What can be listed: the value itself, or the texts of an object.
---@param value any
---@return any
function values.container(value)
  local kind = cbk.kind(value)
  if DICTS[kind] or SEQUENCES[kind] then return value end
  return texts_of(value)
end

return values
