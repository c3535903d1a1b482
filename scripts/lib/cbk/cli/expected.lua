-- A checkpoint's whole logical content as JSON (schema cbk-expected/1), written in pieces.

local cbk = require "cbk"
local extents = require "cbk.extents"
local placed = require "cbk.placed"

local expected = {}

local SMALL = 4096            -- bytes; tensors up to this size are written as hex
local PIECE = 65536           -- bytes; longer texts are written in pieces of about this size
local LEAST_LIMIT = 1000000   -- see `new_writer`
local TENSORS = require("cbk.tensor_kinds").ALL
local SEQUENCES = { list = true, tuple = true, deque = true, set = true, frozenset = true }
local DICTS = { dict = "dict", ordereddict = "ordereddict", defaultdict = "dict", counter = "dict" }

local SHOWN = { shown = true }

local function text_json(text) return cbk.json(text, SHOWN) end

--- Writes what `encode` makes of a text, piece by piece: a text may be as long as its file. No piece ends within a character.
local function write_pieces(write, text, encode)
  local first = 1
  while first <= #text do
    local next_first = text:find("[^\128-\191]", first + PIECE) or #text + 1
    write(encode(text:sub(first, next_first - 1)))
    first = next_first
  end
end

local function without_quotes(piece) return text_json(piece):sub(2, -2) end

-- --- scalars

local function is_big(number) return math.abs(number) >= 2 ^ 53 end

local function int_json(value)
  local text = tostring(value):gsub("U?LL$", "")
  local number = tonumber(text)
  if is_big(number) then return '"' .. text .. '"' end
  return ("%.0f"):format(number)
end

local function float_json(number)
  if number ~= number then return '"nan"' end
  if number == math.huge then return '"inf"' elseif number == -math.huge then return '"-inf"' end
  local text = ("%.17g"):format(number)
  return text:find "[.e]" and text or text .. ".0"
end

local function number_json(value)
  if type(value) == "table" then return ("[%s, %s]"):format(float_json(value[1]), float_json(value[2])) end
  if type(value) == "boolean" then return tostring(value) end
  if type(value) == "number" and (value % 1 ~= 0 or value ~= value or math.abs(value) == math.huge) then return float_json(value) end
  return int_json(value)
end

--- C99 hex, also for values that "%a" does not support: nan and inf.
local function float_hex(number)
  if number ~= number then return "nan" end
  if math.abs(number) == math.huge then return number > 0 and "inf" or "-inf" end
  return ("%a"):format(number)
end

local key_json

local function key_value(kind, key)
  if kind == "none" then return "null" end
  if kind == "tuple" then
    local parts = {}
    for _, part in cbk.raw_items(key) do parts[#parts + 1] = key_json(part) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  if kind == "int" then return int_json(key) end
  if kind == "float" then return float_json(key.value) end
  if kind == "bool" then return tostring(key.value) end
  if kind == "complex" then return text_json(tostring(key)) end
  return text_json(cbk.key_text(key))
end

function key_json(key)
  local kind = cbk.kind(key)
  return ('{"k":"%s","v":%s}'):format(kind, key_value(kind, key))
end

local SCALARS = {
  none = function() return "" end,
  bool = function(value) return ',"value":' .. tostring(value.value) end,
  int = function(value) return ',"value":' .. int_json(value) end,
  float = function(value) return (',"value":%s,"hex":"%s"'):format(float_json(value.value), float_hex(value.value)) end,
  complex = function(value) return ',"value":' .. number_json(value.value) end,
}

-- The member of a text, and what encodes it.
local TEXTS = { str = { "value", without_quotes }, bytes = { "hex", cbk.hex }, bytearray = { "hex", cbk.hex } }

-- --- the writer

---@class ExpectedWriter
local Writer = {}
Writer.__index = Writer

--- Every value takes at least one byte of the file, except in shared containers: a few of them can describe an endless
--- tree. So there is a limit that no file without such sharing reaches.
local function new_writer(checkpoint, write)
  local bytes = 0
  for _, file in ipairs(checkpoint.files) do bytes = bytes + cbk.fs.size(file) end
  return setmetatable({ write = write, limit = math.max(LEAST_LIMIT, bytes), count = 0, above = {}, depth = 0, first = {}, digests = {},
    storages = {}, storage_count = 0, is_torch = checkpoint.format:find "^torch" ~= nil }, Writer)
end

--- A tensor's bytes, or their digest. Those of one place are read once.
function Writer:bytes_member(tensor)
  if tensor:nbytes() <= SMALL then return ('"hex":"%s"'):format(tensor:hex()) end
  local place = placed.at(tensor)
  local known = place and self.digests[place] or { digest = tensor:sha256(), tensor = tensor }
  if place then self.digests[place] = known end
  return ('"sha256":"%s"'):format(known.digest)
end

--- dtype, shape and bytes, as members.
function Writer:array_members(tensor)
  local problem = tensor:problem()
  local bytes = problem and '"problem":' .. text_json(problem) or self:bytes_member(tensor)
  return ('"dtype":"%s","shape":[%s],%s'):format(tensor.dtype, extents.joined(tensor:shape(), ","), bytes)
end

--- Which tensors share a storage, as torch sees it.
function Writer:torch_members(tensor)
  local storage = tensor:storage()
  if not storage then return "" end
  local number = self.storages[storage.id]
  if not number then
    number, self.storage_count = self.storage_count, self.storage_count + 1
    self.storages[storage.id] = number
  end
  return (',"requires_grad":%s,"storage":%d,"storage_offset":%d,"stride":[%s],"storage_numel":%d'):format(
    tostring(tensor.requires_grad), number, storage.offset, extents.joined(storage.stride, ","), storage.numel)
end

function Writer:tensor(path, tensor)
  if tensor.role == "np_scalar" then
    return self.write(('{"kind":"np_scalar","dtype":"%s","value":%s}'):format(tensor.dtype, number_json(tensor:item())))
  end
  local fill = tensor:fill()
  if fill ~= nil and not self.is_torch then
    return self.write(('{"kind":"full","dtype":"%s","shape":[%s],"fill_value":%s}'):format(tensor.dtype,
      extents.joined(tensor:shape(), ","), number_json(fill)))
  end
  local tied = self.first[tensor]
  self.first[tensor] = tied or path
  self.write(('{"kind":"%s",%s%s%s}'):format(tensor.role, self:array_members(tensor),
    tied and ',"tied_to":' .. text_json(tied) or "",
    self.is_torch and tensor.role ~= "ndarray" and self:torch_members(tensor) or ""))
end

--- Enters a container. It must not contain itself, nor be nested too deep.
function Writer:inside(container, path, body)
  if self.above[container] then cbk.fail("value", ("%s holds itself"):format(cbk.quote(path))) end
  if self.depth >= 500 then cbk.fail("value", ("%s is nested deeper than 500 levels"):format(cbk.quote(path))) end
  self.above[container], self.depth = true, self.depth + 1
  body()
  self.above[container], self.depth = nil, self.depth - 1
end

local function below(path, part) return path == "" and part or path .. "." .. part end

function Writer:dict(kind, path, dict)
  self.write(('{"kind":"%s","items":['):format(kind))
  self:inside(dict, path, function()
    local separator = ""
    for key, value in cbk.raw_items(dict) do
      self.write(("%s[%s,"):format(separator, key_json(key)))
      self:node(below(path, cbk.key_text(key)), value)
      self.write "]"
      separator = ","
    end
  end)
  self.write "]}"
end

function Writer:sequence(kind, path, list)
  self.write(('{"kind":"%s","items":['):format(kind))
  self:inside(list, path, function()
    for position, value in cbk.raw_items(list) do
      local index = tonumber(tostring(position)) - 1
      if index > 0 then self.write "," end
      self:node(below(path, tostring(index)), value)
    end
  end)
  self.write "]}"
end

local function size_members(size)
  local numbers = {}
  for _, extent in cbk.items(size) do numbers[#numbers + 1] = int_json(extent) end
  return "[" .. table.concat(numbers, ",") .. "]"
end

local function numbers_json(list)
  local parts = {}
  for _, value in cbk.items(list) do parts[#parts + 1] = number_json(value) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local OBJECTS = {}

OBJECTS["torch.dtype"] = function(self, _, object)
  self.write(('{"kind":"torch.dtype","value":%s}'):format(text_json(object.repr)))
end

OBJECTS["torch.device"] = function(self, _, object)
  self.write(('{"kind":"torch.device","value":%s}'):format(text_json(object.repr)))
end

OBJECTS["torch.sparse_coo"] = function(self, _, object)
  local state = object.state
  self.write(('{"kind":"sparse_coo","dtype":"%s","shape":%s,"indices":{%s},"values_tensor":{%s}}'):format(state.values.dtype,
    size_members(state.shape), self:array_members(state.indices), self:array_members(state.values)))
end

OBJECTS["torch.quantized"] = function(self, _, object)
  local state = object.state
  local int_repr = state.int_repr
  local members = { ('"dtype":%s,"shape":[%s],"qscheme":%s,"int_repr":{%s}'):format(text_json(state.dtype),
    extents.joined(int_repr:shape(), ","), text_json(state.qscheme), self:array_members(int_repr)) }
  for _, name in ipairs { "scale", "zero_point", "scales", "zero_points", "axis" } do
    local value = state[name]
    if value ~= nil then
      members[#members + 1] = ('"%s":%s'):format(name, type(value) == "userdata" and numbers_json(value) or number_json(value))
    end
  end
  self.write(('{"kind":"quantized",%s}'):format(table.concat(members, ",")))
end

OBJECTS["tensorflow.tensor"] = function(self, _, object)
  local state = object.state
  local shape = size_members(state.shape)
  if state.dtype ~= "string" then
    return self.write(('{"kind":"tensor",%s}'):format((self:array_members(state.elements):gsub('^"dtype":"[^"]*"',
      '"dtype":' .. text_json(state.dtype)))))
  end
  local separator = ""
  self.write(('{"kind":"tensor","dtype":"string","shape":%s,"encoding":"hex","values":['):format(shape))
  for _, text in ipairs(cbk.tensorflow.texts(object)) do
    self.write(separator .. '"')
    write_pieces(self.write, text, cbk.hex)
    self.write '"'
    separator = ","
  end
  self.write "]}"
end

OBJECTS["cerebras.graph_tensor"] = function(self, path, object)
  local state = object.state
  self.write(('{"kind":"graph_tensor","jit_graph":%s,"dtype":%s,"shape":%s,"args":['):format(text_json(state.jit_graph),
    text_json(state.dtype), size_members(state.shape)))
  self:inside(state.args, path, function()
    for position, value in cbk.raw_items(state.args) do
      local index = tonumber(tostring(position)) - 1
      if index > 0 then self.write "," end
      self:node(below(path, "args." .. index), value)
    end
  end)
  self.write "]}"
end

function Writer:object(path, object)
  local known = OBJECTS[object.type]
  if known then return known(self, path, object) end
  self.write(('{"kind":"object","class":%s'):format(text_json(object.type)))
  if cbk.kind(object.state) ~= "none" then
    self.write ',"state":'
    self:node(path, object.state)
  else
    self.write((',"repr":%s'):format(text_json(object.repr)))
  end
  self.write "}"
end

function Writer:text(kind, text)
  local member, encode = unpack(TEXTS[kind])
  self.write(('{"kind":"%s","%s":"'):format(kind, member))
  write_pieces(self.write, text, encode)
  self.write '"}'
end

function Writer:node(path, value)
  self.count = self.count + 1
  if self.count > self.limit then
    cbk.fail("value", ("the tree has more than %d values, because containers are shared over and over"):format(self.limit))
  end
  local kind = cbk.kind(value)
  if TENSORS[kind] then return self:tensor(path, value) end
  if DICTS[kind] then return self:dict(DICTS[kind], path, value) end
  if SEQUENCES[kind] then return self:sequence(kind, path, value) end
  if kind == "torch_size" then return self.write(('{"kind":"torch.Size","items":%s}'):format(size_members(value))) end
  if kind == "object" then return self:object(path, value) end
  if TEXTS[kind] then return self:text(kind, value.value) end
  self.write(('{"kind":"%s"%s}'):format(kind, SCALARS[kind](value)))
end

---Writes the checkpoint as one JSON object.
---@param checkpoint Checkpoint
---@param write fun(text: string)  called with one piece after the other
function expected.write(checkpoint, write)
  write(('{"schema":"cbk-expected/1","format":%s,"version":%s,"root":'):format(text_json(checkpoint.format), text_json(checkpoint.version)))
  new_writer(checkpoint, write):node("", checkpoint:raw_root())
  write "}\n"
end

return expected
