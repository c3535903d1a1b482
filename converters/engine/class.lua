-- A model class as data: its config fields, and its tensors for a config.

local cbk = require "cbk"
local extents = require "cbk.extents"
local extent = require "converters.engine.extent"
local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"
local strict = require "converters.engine.strict"
local border = require "converters.notation.border"
local visible = require "converters.notation.visible"
local position = require "converters.notation.position"
local shapes = require "converters.notation.shapes"

local class = {}

local MOST_TENSORS = 70000 -- of a model; the largest that is converted has 37,000
local MOST_OF_OUTLINE = 4 -- layers that may differ

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

-- --- a class over a config

---@class Class
---@field name string                        "LlamaForCausalLM"
---@field fields table<string, ClassField>
---@field field_names string[]               sorted, so that of several mistakes always the same one is reported
---@field since? string                      the first release of the Model Zoo that has these tensors
---@field before? ClassBefore                the class of older releases
---@field history? History              the releases that its fields came with (engine/history.lua)
---@field steps? ClassStep[]                 what changed between its releases
---@field removed? table<string, string>    fields that its programs refuse, with the release since which they do
---@field refused? table<string, string>    fields that its programs refuse but that are written, as by the original converter
---@field renamed? string[][]                names of older files: a Lua pattern and its replacement, { "%.gamma$", ".weight" }
---@field derived? fun(c: table): table      values that follow from others; a text is an extent: { head_dim = "hidden_size / num_heads" };
---                                          other values: a number and the fields it is computed from: { 5, "image_size" }
---@field nodes fun(c: table, since: fun(release: string): boolean): TensorNode   the tensors, from the config's values and from
---                                          whether the release is at least as new as a given one
local Class = {}
Class.__index = Class
border.allow(Class)
visible.show(Class, "name fields field_names since history removed refused renamed derived nodes by_name")

---A class cannot be changed once it is made: several families may share it.
function Class:__newindex(name) cbk.fail("converter", ("the class %s has no '%s', and gets none"):format(self.name, tostring(name))) end

---@private
class.Class = Class

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
    return setmetatable({ name = name, fields = written.fields, field_names = naming.sorted(written.fields), since = written.since,
      before = written.before,
      renamed = written.renamed, removed = written.removed, refused = written.refused, history = written.history,
      steps = written.steps, derived = written.derived, nodes = written.tensors }, Class)
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

---Whether an extent can be computed from these values.
---@param texts table<string, string>   extents that the class derives
---@param written Extent
---@return boolean
local function knows(values, texts, written)
  for name in extent.names_in(written) do
    local text = texts[name]
    if text and not knows(values, texts, text) or not text and extent.value_of(values, name) == nil then return false end
  end
  return true
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

---Whether a config lacks a field under all of its names.
local function is_absent(config, name, field)
  for _, key in ipairs { name, unpack(field.aliases) } do
    local map, inner = place_of(config, key)
    if map[inner] ~= nil then return false end
  end
  return true
end

---The fields by all names under which the class reads them.
---@return table<string, ClassField>
function Class:by_name()
  local out = {}
  for _, name in ipairs(self.field_names) do
    local field = self.fields[name]
    out[name] = field
    for _, alias in ipairs(field.aliases) do out[alias] = out[alias] or field end
  end
  return out
end

---The value of a config field: nil if it is null, the default if it is absent.
---@param config Dict
---@param name string
---@param field ClassField
local function read(config, name, field)
  local names = { name, unpack(field.aliases) }
  for _, key in ipairs(names) do
    local map, inner = place_of(config, key)
    local value = map[inner]
    local wanted = value ~= nil and field_kinds.mistake(field, value, cbk.kind(map, inner))
    if wanted then fields.refuse(key, value, wanted) end
    if value == cbk.null then return nil end
    if value ~= nil then return field_kinds.read(field, value) end
  end
  return kinds.own(field.default)
end

---The class's field with this name or alias. The name may be one that Transformers gives to every class (attribute_map).
---@param of Class
---@param name string
local function standard_field(of, name)
  for own, field in pairs(of.fields) do
    for _, one in ipairs { own, unpack(field.aliases) } do
      if one == name then return own, field end
    end
  end
end

---Fails if a config lacks the number of heads and its width is not the default: no shape would show that the default is wrong.
---@param of Class
---@param given Dict
local function check_heads(of, given)
  for _, place in ipairs { "", "vision_config." } do
    local heads, count = standard_field(of, place .. "num_attention_heads")
    local width, size = standard_field(of, place .. "hidden_size")
    local is_unsure = heads and width and is_absent(given, heads, count) and read(given, width, size) ~= size.default
    if is_unsure then
      cbk.fail("config", ("the config has no '%s', and the default %s belongs to a %s of %s (not %s); add it"):format(heads,
        fields.shown(count.default), width, fields.shown(size.default), fields.shown(read(given, width, size))))
    end
  end
end

---Whether a config leaves a field to the class's default.
---@param config Dict
---@param name string
---@return boolean
function Class:leaves_out(config, name) return self.fields[name] ~= nil and is_absent(config, name, self.fields[name]) end

---Fails if a config's numbers are inconsistent, such as a number of heads that does not divide the width.
---@param config Dict
---@param given? Dict   the config without its defaults
function Class:check(config, given)
  if given then check_heads(self, given) end
  local values, texts = self:values(config)
  local said = {}
  local function is_default(name) return given ~= nil and self:leaves_out(given, name) end
  for name, field in pairs(self.fields) do said[name] = not is_absent(config, name, field) and values[name] or nil end
  for _, name in ipairs(naming.sorted(texts)) do
    if rawget(values, name) == nil and knows(said, texts, texts[name]) then extent.value(texts[name], values, is_default) end
  end
end

---@param first string|nil   the release since which they are refused
local function warn_of_refused(self, names, first)
  if #names == 0 then return end
  cbk.warn(("the config has %s, which the Model Zoo's %s refuses since %s: remove %s to train"):format(table.concat(names, " and "),
    self.name, first, #names == 1 and "this line" or "these lines"))
end

---Removes the fields that the programs of a release refuse, and warns about refused fields that are written all the same.
---@param config Dict       changed in place
---@param release string|nil
function Class:remove_refused(config, release)
  if not release then return end
  for name, first in pairs(self.removed or {}) do
    if releases.since(release, first) then config[name] = nil end
  end
  local found, first = {}, nil
  for _, name in ipairs(naming.sorted(self.refused or {})) do
    if config[name] ~= nil and releases.since(release, self.refused[name]) then found[#found + 1], first = name, self.refused[name] end
  end
  warn_of_refused(self, found, first)
end

---Warns about fields that a newer release refuses. Fails if the model computes something else without them.
---@param config Dict       of the older release, with all of its fields
---@param from string       that release
---@param release string
function Class:check_newer(config, from, release)
  local found, first = {}, nil
  local function find(list, check)
    for _, name in ipairs(naming.sorted(list or {})) do
      if config[name] ~= nil and releases.since(release, list[name]) and not releases.since(from, list[name]) then
        found[#found + 1], first = name, list[name]
        check(self.fields[name], name)
      end
    end
  end
  find(self.removed, function(field, name)
    if not field or field.default == nil or fields.same(config[name], field.default) then return end
    fields.refuse(name, config[name], ("%s, since release %s,"):format(fields.shown(field.default), first))
  end)
  find(self.refused, function() end)
  warn_of_refused(self, found, first)
end

local derived_texts = setmetatable({}, { __mode = "k" }) -- of Values: the extents that their class derives

local Values = { __index = function(values, name)
  local text = derived_texts[values] and derived_texts[values][name]
  return text and extent.value(text, values)
end }
visible.show_data(Values)

---The values that the class's tensors depend on. Values that the class derives are computed when they are used.
---@param config Dict
---@param instead? table<string, any>   values in place of what the config says
---@return table<string, any> values
---@return table<string, string> texts   the extents that the class derives; of a number, the fields it is computed from
function Class:values(config, instead)
  local out, texts = {}, {}
  for _, name in ipairs(self.field_names) do out[name] = read(config, name, self.fields[name]) end
  for name, value in pairs(instead or {}) do out[name] = value end
  for name, value in pairs(self.derived and self.derived(out) or {}) do
    if type(value) == "table" then
      out[name], texts[name] = value[1], table.concat(value, " ", 2)
    elseif type(value) == "string" then
      out[name], texts[name] = nil, value
    else
      out[name] = value
    end
  end
  derived_texts[out] = texts
  return setmetatable(out, Values), texts
end

---@class ClassTensor   A tensor that a class has for a config.
---@field key string
---@field extents Extent[]   as the class has them: { "vocab_size", "hidden_size" }
---@field of ClassTensors              with the config that says its shape
---@field tied_to? string              the key of the same tensor
---@field tied_near? string            that key, if it is relative to the tensor's own prefix
---@field init? number                 the value of its elements in a new model; nil: random numbers
---@field part? string                 a checkpoint may lack all tensors of this name, with a warning
---@field buffer? boolean              computed from the config: a checkpoint may lack it
---@field optional? boolean            only older versions saved it
---@field foreign? boolean             only relatives of the class have it (class.of_relatives)

---@class ClassTensors   All tensors of a class for a config, in the order of its state dict.
---@field [integer] ClassTensor
---@field by_key table<string, ClassTensor>
---@field values table<string, any>
---@field texts table<string, string>
---@field sizes table<Extent, integer>
---@field expected table<Extent[], (integer|false)[]>   of expected_shape
---@field checked table<TensorNode, true>     nodes without mistakes
---@field known_extents table<Extent, true>   extents that name only known fields
---@field names table<string, ClassField>     the fields, by all their names
---@field counts table<string, Extent>   how many there are below a prefix: "layers." to "num_hidden_layers"
---@field class Class
---@field config Dict
---@field given Dict                    the fields that the user's file has
---@field prefix string
---@field release? string
---@field is_outline? boolean
local ClassTensors = {}
ClassTensors.__index = ClassTensors

---The value of an extent, computed once.
---@param written Extent
function ClassTensors:size(written)
  local known = self.sizes[written]
  if not known then
    known = extent.value(written, self.values)
    self.sizes[written] = known
  end
  return known
end

---The shape of a tensor that a class has for a config.
---@param one ClassTensor
---@return integer[]
---@private
function class.shape(one)
  local out = {}
  for i, written in ipairs(one.extents) do out[i] = one.of:size(written) end
  return out
end

---The expected shape, with false for an extent that the config does not say. Tensors of one node share it, which saves half of the time.
---@param one ClassTensor
---@return (integer|false)[]
local function expected_shape(one)
  local known = one.of
  local out = known.expected[one.extents]
  if out then return out end
  out = {}
  for i, written in ipairs(one.extents) do out[i] = knows(known.values, known.texts, written) and known:size(written) end
  known.expected[one.extents] = out
  return out
end

---Fails if an extent names an unknown field.
---@param written Extent
---@param key string   the tensor's, or the prefix of what is repeated
function ClassTensors:check_names(written, key)
  if self.known_extents[written] then return end
  for name in extent.names_in(written) do
    local field = name:match "^[^.]+"
    local is_known = self.names[name] or self.names[field] or self.texts[field] or rawget(self.values, field) ~= nil
    if not is_known then
      local near = cbk.nearest(name, naming.sorted(self.names), 1)[1]
      cbk.fail("converter", ("class %s: '%s' has the extent '%s', but '%s' is not one of its fields%s"):format(self.class.name, key,
        written, name, naming.suggestion(near)))
    end
  end
  self.known_extents[written] = true
end

local OPTIONS = { buffer = true, foreign = true, init = true, optional = true, part = true, tied = true }
local COPIED = { "buffer", "foreign", "init", "optional", "part" }

---Refuses misspelt options of a tensor, which would be ignored.
function ClassTensors:check_options(node, key)
  local known = naming.sorted(OPTIONS)
  for name in pairs(node) do
    if not (OPTIONS[name] or name == 1 or name == 2) then
      local near = cbk.nearest(tostring(name), known)[1]
      cbk.fail("converter", ("class %s: the tensor '%s' has no option '%s'; %s"):format(self.class.name, key, tostring(name),
        naming.question(near) or "known: " .. table.concat(known, ", ")))
    end
  end
end

---Refuses tensors that are tied to each other in a circle.
function ClassTensors:check_circle(first)
  local seen, one = {}, first
  while one do
    if seen[one] then
      cbk.fail("converter", ("class %s: '%s' is tied to '%s', and that leads back to it; one of the names must not be tied")
        :format(self.class.name, first.key, first.tied_to))
    end
    seen[one], one = true, self.by_key[one.tied_to]
  end
end

---Resolves the names of tied tensors: each is a whole key, or is relative to the tensor's own prefix.
function ClassTensors:resolve_ties()
  for _, one in ipairs(self) do
    if one.of == self and one.tied_to and not self.by_key[one.tied_to] then
      if not self.by_key[one.tied_near] then
        cbk.fail("converter", ("class %s: '%s' is tied to '%s', which is not one of its tensors"):format(self.class.name, one.key,
          one.tied_to))
      end
      one.tied_to = one.tied_near
    end
  end
  for _, one in ipairs(self) do
    if one.tied_to then self:check_circle(one) end
  end
end

---Refuses a node with unknown options or extents. Called once for each node: all its tensors share them.
function ClassTensors:check(node, key)
  self:check_options(node, key)
  if type(node[2]) ~= "table" then
    cbk.fail("converter", ("class %s: the tensor '%s' has no shape; write it as { key, { extent, … } }"):format(self.class.name, key))
  end
  for _, written in ipairs(node[2]) do self:check_names(written, key) end
  self.checked[node] = true
end

---Refuses a config that asks for more tensors than any model has.
function ClassTensors:check_count()
  if #self == MOST_TENSORS then
    cbk.fail("config", ("the config describes more than %d tensors; check its numbers of layers and experts"):format(MOST_TENSORS))
  end
end

function ClassTensors:add(node, prefix)
  local key = prefix .. node[1]
  if not self.checked[node] then self:check(node, key) end
  self:check_count()
  local one = { key = key, extents = node[2], of = self }
  for i = 1, #COPIED do
    local option = COPIED[i]
    if node[option] then one[option] = node[option] end
  end
  if node.tied then one.tied_to, one.tied_near = self.prefix .. node.tied, prefix .. node.tied end
  self[#self + 1], self.by_key[key] = one, one
end

---The tensors of another class, with its own config.
function ClassTensors:add_part(node, prefix)
  if not kinds.is_dict(node.config) then return end
  local place = node.prefix == "" and prefix or prefix .. node.prefix .. "."
  for _, one in ipairs(node.class:tensors(node.config, { prefix = place, release = self.release, is_outline = self.is_outline })) do
    self:check_count()
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
  if nodes then
    self:check_names(count, prefix .. node.prefix)
    self.counts[prefix .. node.prefix .. "."] = count
  end
  local most = self.is_outline and (type(nodes) == "function" and MOST_OF_OUTLINE or 1) or math.huge
  for i = 0, nodes and math.min(self:size(count), most) - 1 or -1 do
    self:flatten(type(nodes) == "function" and nodes(i) or nodes, ("%s%s.%d."):format(prefix, node.prefix, i))
  end
end

---@class ClassOptions
---@field release? string              of the Model Zoo, default: the newest
---@field prefix? string               what is before all keys
---@field values? table<string, any>   in place of what the config says
---@field given? Dict                  the user's config, if `config` is complete with defaults
---@field asked? table<string, true>    gets the releases that the tensors depend on
---@field is_outline? boolean          the first layers, and the first expert of each: enough to see which names there are

---@param config Dict      a config.json, or the model section of a Model Zoo config
---@param options? ClassOptions
---@return ClassTensors
function Class:tensors(config, options)
  options = options or {}
  if self.before and options.release and options.asked then options.asked[self.since] = true end
  if self.before and options.release and not releases.since(options.release, self.since) then
    return self.before.class:tensors(self.before.config(config), { prefix = options.prefix, is_outline = options.is_outline })
  end
  local values, texts = self:values(config, options.values)
  local function since(first)
    if options.asked then options.asked[first] = true end
    return options.release == nil or releases.since(options.release, first)
  end
  local out = setmetatable({ by_key = {}, sizes = {}, expected = {}, counts = {}, known_extents = {}, checked = {}, names = self:by_name(),
    values = values, texts = texts, class = self, config = config, is_outline = options.is_outline,
    given = options.given or config, prefix = options.prefix or "", release = options.release }, ClassTensors)
  out:flatten(self.nodes(values, since), out.prefix)
  out:resolve_ties()
  return out
end

-- --- names in checkpoints

---The key as the class has it. A Model Zoo key may begin with `model.`, and older files may have other names. In Hugging Face's files
---`model.` belongs to the name: keys with it and without it are of two classes.
---@param key string
---@return string|nil
function ClassTensors:own_key(key)
  if self.by_key[key] then return key end
  local short = self.release and key:gsub("^model%.", "") or key
  if self.by_key[short] then return short end
  for _, pair in ipairs(self.class.renamed or {}) do
    local name, count = short:gsub(pair[1], pair[2])
    if count > 0 and self.by_key[name] then return name end
  end
end

---Whether the class has a key under its current name. Older names do not count.
---@param key string
---@return boolean
function ClassTensors:has(key)
  local short = self.release and key or ""
  while short:find "^model%." do short = short:sub(#"model." + 1) end -- each step since 1.8 may have added one
  return self.by_key[key] ~= nil or self.by_key[short] ~= nil
end

---The config count that this key's index exceeds, such as "num_hidden_layers=2"; nil if none.
---@param key string
---@return string|nil count, string|nil layer   the key's layer: "model.layers.2."
function ClassTensors:beyond(key)
  for _, prefix in ipairs(naming.sorted(self.counts)) do
    local count = self.counts[prefix]
    local _, stop = key:find(prefix, 1, true)
    local number = stop and key:match("^%d+", stop + 1)
    if number and tonumber(number) >= self:size(count) then
      local found = self:fields_of(count, {})
      local stated = #found > 0 and table.concat(found, ", ") or ("%d of %s"):format(self:size(count), prefix)
      return stated, key:sub(1, stop) .. number .. "."
    end
  end
end

---The layer that a key is in: "transformer_decoder.layers.1.".
---@param key string
---@return string|nil layer, Extent|nil count   of such layers
function ClassTensors:layer_of(key)
  local layer, found
  for prefix, count in pairs(self.counts) do
    local number = key:sub(1, #prefix) == prefix and key:match("^%d+%.", #prefix + 1)
    if number and (not layer or #prefix < #layer) then layer, found = prefix .. number, count end
  end
  return layer, found
end

---The first layer that lacks all of its weights.
---@param missing string[]
---@return string|nil layer, string|nil count   "num_hidden_layers=3"
function ClassTensors:absent_layer(missing)
  if #missing == 0 then return nil end
  local wanted, counts, is_missing = {}, {}, {}
  for _, key in ipairs(missing) do is_missing[key] = true end
  for _, one in ipairs(self) do
    local layer, count = self:layer_of(one.key)
    if layer and not (one.buffer or one.optional) then
      if wanted[layer] == nil then wanted[layer], counts[#counts + 1] = true, { layer, count } end
      wanted[layer] = wanted[layer] and is_missing[one.key] == true
    end
  end
  local has_some = {} -- of a stack; else the checkpoint is of another model, or has other names
  for _, pair in ipairs(counts) do
    if not wanted[pair[1]] then has_some[(pair[1]:gsub("%d+%.$", ""))] = true end
  end
  for _, pair in ipairs(counts) do
    local stack = pair[1]:gsub("%d+%.$", "")
    if wanted[pair[1]] and has_some[stack] then return pair[1], table.concat(self:fields_of(pair[2], {}), ", ") end
  end
end

---Counts of layers, experts and the like that come only from a default: "num_hidden_layers=12".
---@return string[]
function ClassTensors:assumed_counts()
  local out = {}
  for _, count in pairs(self.counts) do
    local field = self.class.fields[count]
    local text = field and is_absent(self.given, count, field) and ("%s=%d"):format(count, self:size(count))
    if text and not out[text] then out[#out + 1], out[text] = text, true end
  end
  table.sort(out)
  return out
end

---For each tied tensor, all of its names, in the class's order.
---@return string[][]
function ClassTensors:tied_names()
  local out, by_name = {}, {}
  for _, one in ipairs(self) do
    local root = one.tied_to and not one.optional and self.by_key[one.tied_to] and one.tied_to
    if root and not by_name[root] then
      by_name[root] = { root }
      out[#out + 1] = by_name[root]
    end
    if root then
      table.insert(by_name[root], one.key)
      by_name[one.key] = by_name[root]
    end
  end
  return out
end

---Biases that the class has only because of the default of an absent field: "use_ffn_bias" to keys.
---@return table<string, string[]>
function ClassTensors:assumed_biases()
  local out = {}
  for name, field in pairs(self.class.fields) do
    if field.unbiased ~= nil and field.unbiased ~= field.default and is_absent(self.given, name, field) then
      local other = self.class:tensors(self.config, { release = self.release, prefix = self.prefix, values = { [name] = field.unbiased } })
      out[name] = {}
      for _, one in ipairs(self) do
        if not (one.tied_to or other.by_key[one.key]) then table.insert(out[name], one.key) end
      end
    end
  end
  return out
end

-- --- comparing shapes

---The name of a field in the user's file. If the file has several, the one with the value in use.
function ClassTensors:name_in_file(name)
  local field, value = self.class.fields[name], extent.value_of(self.values, name)
  for _, one in ipairs(field and { name, unpack(field.aliases) } or {}) do
    local map, inner = place_of(self.given, one)
    if kinds.present(map[inner]) and fields.same(map[inner], value) then return one end
  end
  return name
end

---The config fields that an extent depends on, with their values: "num_heads=4".
---@param found string[]   receives them
---@param defaults? table<string, string>   receives those that the config does not have, in other words
function ClassTensors:fields_of(written, found, defaults)
  for name in extent.names_in(written) do
    local value, field = fields.shown(extent.value_of(self.values, name)), self:name_in_file(name)
    local text = ("%s=%s"):format(field, value)
    if defaults and self.class:leaves_out(self.given, name) then
      defaults[text] = ("%s is not in the config; default %s"):format(field, value)
    end
    if self.texts[name] then
      self:fields_of(self.texts[name], found, defaults)
    elseif not found[text] then
      found[#found + 1], found[text] = text, true
    end
  end
  return found
end

---The shape of a buffer with as many dimensions as in its class. Versions of a class save the same mask, or the same positions, with more
---or fewer leading extents of 1.
---@param one ClassTensor
---@param shape integer[]
local function as_in_class(one, shape)
  local is_padded = one.buffer and (#one.extents == 0 or one.extents[1] == 1)
  if not is_padded then return shape end
  local first = 1
  while shape[first] == 1 do first = first + 1 end
  local out = { unpack(shape, first) }
  while #out < #one.extents do table.insert(out, 1, 1) end
  return out
end

---What is wrong with the shape of a checkpoint's tensor; nil if it is right, or if the class has no such tensor. An extent that the config
---does not say may have any size: some fields are optional, as programs take them from the training data.
---@param key string
---@param shape integer[]
---@return string|nil why      "expected [300, 64] (vocab_size=300), found [256, 64]"
---@return string[]|nil fields   those of the extents that differ, with their values: "vocab_size=300"
function ClassTensors:mistake(key, shape)
  local one = self.by_key[self:own_key(key) or ""]
  if not one then return nil end
  local known, found = expected_shape(one), shape
  shape = as_in_class(one, shape)
  local is_same = #known == #shape
  for i = 1, #known do is_same = is_same and (known[i] or shape[i]) == shape[i] end
  if is_same then return nil end
  local expected, differing, defaults = {}, {}, {}
  for i, written in ipairs(one.extents) do
    expected[i] = known[i] or shape[i] or 0
    if shape[i] ~= expected[i] then one.of:fields_of(written, differing, defaults) end
  end
  local said = {}
  for i, field in ipairs(differing) do
    said[i] = defaults[field] and (#differing == 1 and defaults[field] or field .. ", the default") or field
  end
  local why = #said > 0 and (" (%s)"):format(table.concat(said, "; ")) or ""
  return ("expected %s%s, found %s"):format(extents.shape(expected), why, extents.shape(found)), differing
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
