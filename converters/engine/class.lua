-- A model class as data: its config fields, and the tensors that it has for a config.

local cbk = require "cbk"
local extents = require "cbk.extents"
local demands = require "converters.engine.demands"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local releases = require "converters.modelzoo.releases"

local class = {}

local MOST_TENSORS = 150000 -- of a model; the largest ones have 100,000

-- --- writing classes

---@class ClassField
---@field kind string        what the value must be (demands.lua)
---@field default any        of the class; nil: without this field nothing is described, or it is derived from others
---@field aliases? string[]  other names under which the class reads it

---Makers of fields, one for each kind of value: `size(768)`, `text("gelu", "hidden_act")`.
---@type table<string, fun(default: any, ...: string): ClassField>
class.kinds = {}
for _, word in ipairs(demands.words()) do
  class.kinds[word] = function(default, ...) return { kind = word, default = default, aliases = { ... } } end
end

---A value of any kind, which no tensor depends on, or whose parts `derived` reads.
function class.kinds.any(default, ...) return { default = default, aliases = { ... } } end

---@alias TensorNode table   A tensor `{ "lm_head.weight", { "vocab_size", "hidden_size" } }`, or a list of nodes; false is no tensor.
---A tensor's extents are numbers, or texts over config fields: "3 * hidden_size". `tied`: the key of the same tensor;
---`buffer`: it is computed from the config, so that a checkpoint may lack it; `optional`: only older versions saved it; `init`: what all
---its elements are in a new model, where they are not random.

---Nodes below a prefix.
---@param prefix string
---@param nodes TensorNode
---@return TensorNode
function class.below(prefix, nodes) return { prefix = prefix, nodes = nodes } end

---Nodes below "prefix.0", "prefix.1", and so on.
---@param count integer|string   how many; a text is over config fields
---@param nodes TensorNode|fun(index: integer): TensorNode
---@return TensorNode
function class.each(prefix, count, nodes) return { prefix = prefix, count = count, nodes = nodes } end

---All tensors of another class below a prefix.
---@param other Class
---@param config Dict   of that class
---@return TensorNode
function class.part(prefix, other, config) return { prefix = prefix, class = other, config = config } end

---A Linear of PyTorch: the weight is [outputs, inputs].
function class.linear(name, inputs, outputs, has_bias)
  return { { name .. ".weight", { outputs, inputs } }, has_bias and { name .. ".bias", { outputs }, init = 0 } }
end

---A Conv1D of transformers: the weight is [inputs, outputs].
function class.conv1d(name, inputs, outputs)
  return { { name .. ".weight", { inputs, outputs } }, { name .. ".bias", { outputs }, init = 0 } }
end

---A layer norm, with a bias unless that is said.
function class.norm(name, size, has_bias)
  return { { name .. ".weight", { size }, init = 1 }, has_bias ~= false and { name .. ".bias", { size }, init = 0 } }
end

-- --- extents

local compiled = {} -- by text

---@param text string   "3 * hidden_size"
---@return function
local function expression(text)
  if not compiled[text] then
    local is_plain = text:find "^[%w_ .+*/()-]+$" and not text:find "%.%."
    compiled[text] = is_plain and loadstring("return (" .. text .. ")", "=extent")
      or cbk.fail("converter", ("'%s' is not an extent; write a number, or numbers and config fields with + - * /"):format(text))
  end
  return compiled[text]
end

---The config fields that an extent names: "hidden_size", "extra_attention_params.num_kv_groups".
---@param extent integer|string
local function names_in(extent) return tostring(extent):gmatch "[%a_][%w_.]*" end

---@param values table<string, any>
---@param name string
local function value_of(values, name)
  local value = values
  for part in name:gmatch "[^.]+" do value = value ~= nil and value[part] or nil end
  return value
end

---The value of an extent.
---@param extent integer|string
---@param values table<string, any>
---@return integer
local function size_of(extent, values)
  if type(extent) == "number" then return extent end
  local fine, result = pcall(setfenv(expression(extent), values))
  if fine and type(result) == "number" and result >= 0 and result % 1 == 0 and result < 2 ^ 53 then return result end
  local named = {}
  for name in names_in(extent) do
    local value = value_of(values, name)
    if value == nil then cbk.fail("config", ("the config has no '%s', which shapes of tensors depend on"):format(name)) end
    named[#named + 1] = ("%s=%s"):format(name, fields.shown(value))
  end
  cbk.fail("config", ("the config gives no whole number for %s: %s"):format(extent, table.concat(named, ", ")))
end

-- --- a class over a config

---@class Class
---@field name string                        "LlamaForCausalLM"
---@field fields table<string, ClassField>
---@field since? string                      the first release of the Model Zoo that has these tensors
---@field derived? fun(c: table): table      values that follow from others; a text is an extent: { head_dim = "hidden_size / num_heads" };
---                                          what no extent can say is a number and the fields it is computed from: { 5, "image_size" }
---@field nodes fun(c: table, since: fun(release: string): boolean): TensorNode   the tensors, as a function of the config's values and
---                                          of what the release is not older than
local Class = {}
Class.__index = Class
class.Class = Class

---@param name string
---@return fun(written: { fields: table<string, ClassField>, derived?: function, tensors: function }): Class
function class.new(name)
  return function(written)
    return setmetatable({ name = name, fields = written.fields, since = written.since, derived = written.derived,
      nodes = written.tensors }, Class)
  end
end

---The config fields of a class with others added, or in their place.
---@param base table<string, ClassField>
---@param more table<string, ClassField>
function class.extend(base, more)
  local out = {}
  for name, field in pairs(base) do out[name] = field end
  for name, field in pairs(more) do out[name] = field end
  return out
end

---The map that a field is in: "attn_config.alibi" may be a field of a section, or, while rules run, a field of that name.
---@param config Dict
---@param name string
---@return Dict map, string name
local function place_of(config, name)
  local section, inner = name:match "^(.-)%.(.*)$"
  if config[name] == nil and section and kinds.is_dict(config, section) then return config[section], inner end
  return config, name
end

---What a config says of a field; nil where it is null, the default where it is absent.
---@param config Dict
---@param name string
---@param field ClassField
local function read(config, name, field)
  local names = { name, unpack(field.aliases) }
  for _, key in ipairs(names) do
    local map, inner = place_of(config, key)
    local value, demand = map[inner], field.kind and demands.find(field.kind)
    if value == cbk.null then return nil end
    if value ~= nil then
      if demand and not demands.holds(demand, value, cbk.kind(map, inner)) then fields.refuse(key, value, demand.says) end
      if demand and demand.number then return tonumber(tostring(value)) end
      if demand and demand.plain then return demand.plain(value) end
      return value
    end
  end
  return field.default
end

---The values that the class's tensors depend on. Those that the class derives are worked out when they are asked for.
---@param config Dict
---@return table<string, any> values
---@return table<string, string> texts   the extents that the class derives; of a number, the fields it is computed from
function Class:values(config)
  local out, texts = {}, {}
  for name, field in pairs(self.fields) do out[name] = read(config, name, field) end
  for name, value in pairs(self.derived and self.derived(out) or {}) do
    if type(value) == "table" then
      out[name], texts[name] = value[1], table.concat(value, " ", 2)
    elseif type(value) == "string" then
      out[name], texts[name] = nil, value
    else
      out[name] = value
    end
  end
  setmetatable(out, { __index = function(values, name)
    local text = texts[name]
    return text and size_of(text, values)
  end })
  return out, texts
end

---@class ClassTensor   What a class has for a config.
---@field key string
---@field extents (integer|string)[]   as the class has them: { "vocab_size", "hidden_size" }
---@field of ClassTensors              with the config that says its shape
---@field tied_to? string              the key of the same tensor
---@field init? number                 what its elements are in a new model; nil: random numbers
---@field buffer? boolean              computed from the config: a checkpoint may lack it
---@field optional? boolean            only older versions saved it

---@class ClassTensors   All tensors of a class for a config, in the order of its state dict.
---@field [integer] ClassTensor
---@field by_key table<string, ClassTensor>
---@field values table<string, any>
---@field texts table<string, string>
---@field sizes table<integer|string, integer>
---@field prefix string
---@field release? string
local ClassTensors = {}
ClassTensors.__index = ClassTensors

---The value of an extent, which is worked out once.
---@param extent integer|string
function ClassTensors:size(extent)
  local known = self.sizes[extent]
  if not known then
    known = size_of(extent, self.values)
    self.sizes[extent] = known
  end
  return known
end

---The shape of a tensor that a class has for a config.
---@param one ClassTensor
---@return integer[]
function class.shape(one)
  local out = {}
  for i, extent in ipairs(one.extents) do out[i] = one.of:size(extent) end
  return out
end

function ClassTensors:add(node, prefix)
  local one = { key = prefix .. node[1], extents = node[2], of = self, init = node.init, buffer = node.buffer,
    optional = node.optional }
  one.tied_to = node.tied and self.prefix .. node.tied or nil
  if #self == MOST_TENSORS then
    cbk.fail("config", ("the config describes more than %d tensors; check its numbers of layers and experts"):format(MOST_TENSORS))
  end
  self[#self + 1], self.by_key[one.key] = one, one
end

---The tensors of another class, with its own config.
function ClassTensors:add_part(node, prefix)
  if not kinds.is_dict(node.config) then return end
  for _, one in ipairs(node.class:tensors(node.config, { prefix = prefix .. node.prefix .. ".", release = self.release })) do
    self[#self + 1], self.by_key[one.key] = one, one
  end
end

---@param node TensorNode|false|nil
function ClassTensors:flatten(node, prefix)
  if not node then return end
  if type(node[1]) == "string" then return self:add(node, prefix) end
  if node.class then return self:add_part(node, prefix) end
  for i = 1, table.maxn(node) do self:flatten(node[i], prefix) end
  local nodes, count = node.nodes, node.count
  if nodes and not count then return self:flatten(nodes, prefix .. node.prefix .. ".") end
  for i = 0, nodes and self:size(count) - 1 or -1 do
    self:flatten(type(nodes) == "function" and nodes(i) or nodes, ("%s%s.%d."):format(prefix, node.prefix, i))
  end
end

---@param config Dict      a config.json, or the model section of a Model Zoo config
---@param options? { release?: string, prefix?: string }   of the Model Zoo, default: the newest; what is before all keys
---@return ClassTensors
function Class:tensors(config, options)
  local values, texts = self:values(config)
  local release = options and options.release
  local function since(first) return release == nil or releases.since(release, first) end
  local prefix = options and options.prefix or ""
  local out = setmetatable({ by_key = {}, sizes = {}, values = values, texts = texts, prefix = prefix, release = release }, ClassTensors)
  out:flatten(self.nodes(values, since), out.prefix)
  return out
end

-- --- comparing shapes

---The config fields that an extent depends on, with their values: "num_heads=4".
function ClassTensors:fields_of(extent, found)
  for name in names_in(extent) do
    local text = ("%s=%s"):format(name, fields.shown(value_of(self.values, name)))
    if self.texts[name] then
      self:fields_of(self.texts[name], found)
    elseif not found[text] then
      found[#found + 1], found[text] = text, true
    end
  end
  return found
end

---Whether the config says, or the class assumes, every field that an extent depends on.
---@param extent integer|string
---@return boolean
function ClassTensors:knows(extent)
  for name in names_in(extent) do
    local text = self.texts[name]
    if text and not self:knows(text) or not text and value_of(self.values, name) == nil then return false end
  end
  return true
end

---What is wrong with the shape that a checkpoint has under a key; nil where nothing is, and where the class has no such tensor.
---An extent whose fields the config does not say may be any: some are optional, as programs take them from the training data.
---@param key string
---@param shape integer[]
---@return string|nil   "expected [300, 64] (vocab_size=300, hidden_size=64), found [256, 64]"
function ClassTensors:mistake(key, shape)
  local one = self.by_key[key]
  if not one then return nil end
  local expected, is_same, differing = {}, #one.extents == #shape, {}
  for i, extent in ipairs(one.extents) do
    expected[i] = one.of:knows(extent) and one.of:size(extent) or shape[i] or 0
    if shape[i] ~= expected[i] then
      is_same = false
      one.of:fields_of(extent, differing)
    end
  end
  if is_same then return nil end
  local why = #differing > 0 and (" (%s)"):format(table.concat(differing, ", ")) or ""
  return ("expected %s%s, found %s"):format(extents.shape(expected), why, extents.shape(shape))
end

return class
