-- Writing a model class as data: its config fields and its tensors.

local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local model_class = require "converters.engine.model_class"
local naming = require "cbk.naming"
local strict = require "converters.engine.strict"
local position = require "converters.notation.position"
local shapes = require "converters.notation.shapes"

local class = {}

-- --- writing classes

---@class ClassField
---@field kind? string       what the value must be (field_kinds.lua); nil: anything
---@field default any        of the class; nil: it may be left out or null
---@field aliases string[]   other names under which the class reads it
---@field unbiased? any      the value with which some tensors have no bias
---@field free? boolean      a model with another value computes the same once it is trained
---@field unused? fun(value: any, config: Dict): boolean   values that mean the same as the default
---@field tries? any[]        values with which the class has other tensors (class.deciding)

---Functions that describe a field, one for each kind of value (see Kinds of fields). Arguments are the default and further names of the
---field: `text("gelu", "hidden_act")`. A field without a default may be left out.
---@type table<string, fun(default: any, ...: string): ClassField>
class.kinds = {}
for _, word in ipairs(field_kinds.names()) do
  class.kinds[word] = function(default, ...) return { kind = word, default = default, aliases = { ... } } end
end

---A flag for biases. If a config leaves it out, the checkpoint decides.
---@private
function class.kinds.bias(default, ...) return { kind = "boolean", default = default, aliases = { ... }, unbiased = false } end

---The Model Zoo's name for the type of a layer norm.
---@private
function class.kinds.norm(default, ...)
  return { kind = "text", default = default, aliases = { ... }, unbiased = "biasless-layernorm",
    tries = { "layernorm", "rmsnorm", "biasless-layernorm", "nonparametric-layernorm" } }
end

---A value of any kind, such as a map.
---@private
function class.kinds.any(default, ...) return { default = default, aliases = { ... } } end

---A value of any kind that does not change what a trained model computes.
---@private
function class.kinds.free(default, ...) return class.free(class.kinds.any(default, ...)) end

---Several of `class.kinds` by their names: `local size, text = class.makers "size text"`.
---@param names string
function class.makers(names)
  local out = {}
  for name in names:gmatch "%a+" do
    if not class.kinds[name] then
      local source, line = position.here(3)
      position.fail(source, line, "there is no kind of fields '%s'; there are %s", name,
        table.concat(naming.sorted(class.kinds), ", "))
    end
    out[#out + 1] = class.kinds[name]
  end
  return unpack(out)
end

---The classes of a file by name. An unknown name is an error: a converter without a class is not checked.
---@param classes table<string, Class|function>
---@return table<string, Class|function>
function class.module(classes) return strict(classes, "class") end

---Marks a field that may have any value if no rule names it, because it means something only together with others.
---@param field ClassField
---@return ClassField
function class.free(field)
  field.free = true
  return field
end

---Marks a field with values that mean the same as its default: `unused(value, config)` returns true for them.
---@param field ClassField
---@param unused fun(value: any, config: Dict): boolean
---@return ClassField
function class.unused(field, unused)
  field.unused = unused
  return field
end

---Says with which values of a field the class has other tensors, one value for each kind of names: `deciding(text "gelu", "swiglu")`.
---Without a config, these are tried (recognise/guess.lua); true and false of a flag always are.
---@param field ClassField
---@return ClassField
function class.deciding(field, ...)
  field.tries = { ... }
  return field
end

---@alias TensorNode table   A tensor `{ "lm_head.weight", { "vocab_size", "hidden_size" } }`, or a list of nodes; false is no tensor.
---A tensor's extents are numbers, or texts over config fields: "3 * hidden_size".

---@class TensorOptions
---@field tied? string         The key of the same tensor; false if it is not tied.
---@field buffer? boolean      True if it is computed from the config, so that a checkpoint may lack it.
---@field optional? boolean    True if only some versions of the class save it. `class.optional` sets it.
---@field foreign? boolean   The class does not compute with it: only relatives of the class have it (`class.of_relatives`).
---@field part? string         The name of tensors that a checkpoint may lack all together, with a warning. `class.may_lack` sets it.
---@field init? number         The value of all its elements in a new model; random if it is absent.

---Tensors below a prefix.
---@param prefix string
---@param nodes TensorNode
---@return TensorNode
function class.below(prefix, nodes) return { prefix = prefix, nodes = nodes } end

---Tensors below "prefix.0", "prefix.1", and so on.
---@param count integer|string   a number, or a text over config fields
---@param nodes TensorNode|fun(index: integer): TensorNode
---@return TensorNode
function class.each(prefix, count, nodes) return { prefix = prefix, count = count, nodes = nodes } end

---All tensors of another class below a prefix, with a config of their own.
---@param other Class
---@param config Dict
---@return TensorNode
function class.part(prefix, other, config) return { prefix = prefix, class = other, config = config } end

---Calls `mark` with each tensor of some nodes.
---@param nodes TensorNode   tensors, or lists of them
local function each_tensor(nodes, mark)
  if type(nodes[1]) == "string" then return mark(nodes) end
  for i = 1, table.maxn(nodes) do
    if nodes[i] then each_tensor(nodes[i], mark) end
  end
end

---Tensors that a checkpoint may lack all together, with a warning: `class.may_lack("the pooler", linear(…))`.
---@param name string
---@param nodes TensorNode
---@return TensorNode
function class.may_lack(name, nodes)
  each_tensor(nodes, function(node) node.part = name end)
  return nodes
end

---Marks tensors that only some versions of the class save.
---@param nodes TensorNode
---@return TensorNode
function class.optional(nodes)
  each_tensor(nodes, function(node) node.optional = true end)
  return nodes
end

---Marks tensors that the class does not compute with, and that tables copy all the same, as relatives of the class have them. They are
---unknown tensors to it.
---@param nodes TensorNode
---@return TensorNode
function class.of_relatives(nodes)
  each_tensor(class.optional(nodes), function(node) node.foreign = true end)
  return nodes
end

---Weight and bias of a PyTorch Linear; the weight is [outputs, inputs].
function class.linear(name, inputs, outputs, has_bias)
  return { { name .. ".weight", { outputs, inputs } }, has_bias and { name .. ".bias", { outputs }, init = 0 } }
end

---Weight and bias of a Conv1D of transformers; the weight is [inputs, outputs].
function class.conv1d(name, inputs, outputs)
  return { { name .. ".weight", { inputs, outputs } }, { name .. ".bias", { outputs }, init = 0 } }
end

---Weight and bias of a layer norm. It has a bias unless `has_bias` is false.
function class.norm(name, size, has_bias)
  return { { name .. ".weight", { size }, init = 1 }, has_bias ~= false and { name .. ".bias", { size }, init = 0 } }
end

-- --- a whole class

---@class ClassBefore   The names of a class in the releases before its `since`.
---@field class Class                       that had them
---@field config fun(section: Dict): Dict   a config of the release as that class reads it

---@class ClassStep: Converter
---@field applies fun(section: Dict): boolean   whether it changes a model with this config

---@class ClassTable
---@field fields table<string, ClassField>   The config fields by name: `{ width = size(768) }`.
---@field tensors fun(c: table, since: fun(release: string): boolean): TensorNode   `function(c, since)` returns the tensors. `c` has the
---                                          values of the config, `since "2.1"` is true in that release and later.
---@field derived? fun(c: table): table      `function(c)` returns values that follow from others: `{ head_dim = "hidden_size / heads" }`.
---                                          A value that no text can express is `{ value, FIELD, … }` with the fields it depends on.
---@field since? string                      The first release of the Model Zoo that has these tensors.
---@field before? ClassBefore                What older releases had: `{ class = CLASS, config = function(section) … end }`.
---@field history? History              The releases with which fields came: `{ rope_theta = { "2.1", 10000 } }`, where older ones
---                                          compute with the second value.
---@field steps? ClassStep[]                 Converters between two adjacent releases, each with `applies(section)`: whether it is for
---                                          the model of a config. They are run for all families that have no converter of their own.
---@field removed? table<string, string>     Fields that the class refuses, each with the first release that does. They are not written.
---@field refused? table<string, string>     Fields that the class refuses, but that are written, with a warning.
---@field renamed? string[][]                Names of tensors in older files: pairs of a Lua pattern and its replacement.

local LUA_KINDS = { string = "str", number = "float", boolean = "bool" } -- as cbk.kind names them

local any = shapes.any
local members = shapes.record("a class", { fields = any, tensors = any, derived = any, since = any, before = any, history = any,
  steps = any, removed = any, refused = any, renamed = any })

---A name that two fields of a class have.
---@param written table<string, ClassField>
---@return string|nil
local function name_of_two(written)
  local owner = {}
  for _, name in ipairs(naming.sorted(written)) do
    for _, one in ipairs { name, unpack(written[name].aliases) } do
      if owner[one] and owner[one] ~= name then return ("'%s' is a name of the fields '%s' and '%s'"):format(one, owner[one], name) end
      owner[one] = name
    end
  end
end

---The first mistake in the definition of a class, or nil.
---@param written ClassTable
---@return string|nil
local function mistake_in(written)
  local unknown = members.mistake(written, "")
  if unknown then return unknown end
  if type(written.fields) ~= "table" then return "'fields' must be a table of fields by name" end
  if type(written.tensors) ~= "function" then return "'tensors' must be a function that returns the tensors" end
  for name, field in pairs(written.fields) do
    if type(name) ~= "string" then return ("the name of a field must be a string, not a %s"):format(type(name)) end
    if type(field) ~= "table" or not field.aliases then
      return ("the field '%s' must be made by one of class.kinds, such as size(768), not a %s"):format(tostring(name), type(field))
    end
    for i, alias in ipairs(field.aliases) do
      if type(alias) ~= "string" then
        return ("argument %d of the field '%s' must be a further name of it, not %s"):format(i + 1, name, fields.shown(alias))
      end
    end
    local wanted = field.default ~= nil and field_kinds.mistake(field, field.default, LUA_KINDS[type(field.default)] or "")
    if wanted then return ("the default of the field '%s' must be %s, not %s"):format(name, wanted, fields.shown(field.default)) end
  end
  return name_of_two(written.fields)
end

---`class.new "NAME" { fields = …, tensors = … }`: a model class.
---@param name string
---@return fun(written: ClassTable): Class
function class.new(name)
  return function(written)
    local mistake = mistake_in(written)
    if mistake then
      local source, line = position.here(3)
      position.fail(source, line, "class %s: %s", name, mistake)
    end
    local out = { name = name, field_names = naming.sorted(written.fields), nodes = written.tensors }
    for member, value in pairs(written) do
      if member ~= "tensors" then out[member] = value end
    end
    return setmetatable(out, model_class)
  end
end

---A copy of the fields of a class with some added or replaced.
---@param base table<string, ClassField>
---@param more table<string, ClassField>
function class.extend(base, more)
  local out = {}
  for name, field in pairs(base) do out[name] = field end
  for name, field in pairs(more) do out[name] = field end
  return out
end

-- --- what the functions take

local maybe, named, text, func = shapes.maybe, shapes.named, shapes.text, shapes.func
local prefix = shapes.of("a prefix", function(value) return type(value) == "string" end)
local extent_or_text = shapes.of("an extent, a number or a text over config fields", function(value)
  return type(value) == "string" and value ~= "" or shapes.index.mistake(value, "") == nil
end)
local nodes, flag = named("a list of tensors", shapes.table), maybe(shapes.any)
local field = shapes.of("a field, made by one of class.kinds", function(value) return type(value) == "table" and value.aliases ~= nil end)
local list_of_fields = named("a table of fields by name", shapes.table)

shapes.guard(class, "class", {
  below = { prefix, nodes }, each = { prefix, extent_or_text, shapes.either(shapes.func, nodes) },
  part = { prefix, named("a class", shapes.table), maybe(shapes.any) },
  linear = { prefix, extent_or_text, extent_or_text, flag }, conv1d = { prefix, extent_or_text, extent_or_text },
  norm = { prefix, extent_or_text, flag }, may_lack = { named("a name", text), nodes }, optional = { nodes }, of_relatives = { nodes },
  free = { field }, unused = { field, named("a function of the value", func) }, deciding = { field, rest = shapes.any },
  makers = { named("names of kinds", text) }, extend = { list_of_fields, list_of_fields },
})

return strict(class, "function", "class.")
