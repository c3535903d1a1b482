-- The tensors that a model class has for a config: their keys, shapes and ties, and how the keys and shapes of a checkpoint fit.

local cbk = require "cbk"
local extents = require "cbk.extents"
local class_field = require "converters.engine.class_field"
local extent = require "converters.engine.extent"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"

local class_tensors = {}

local MOST_TENSORS = 70000 -- of a model; the largest that is converted has 37,000
local MOST_OF_OUTLINE = 4 -- layers that may differ

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
function class_tensors.shape(one)
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
  for i, written in ipairs(one.extents) do out[i] = extent.knows(known.values, known.texts, written) and known:size(written) end
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

---@param class Class
---@param config Dict      a config.json, or the model section of a Model Zoo config
---@param options? ClassOptions
---@return ClassTensors
function class_tensors.of(class, config, options)
  options = options or {}
  if class.before and options.release and options.asked then options.asked[class.since] = true end
  if class.before and options.release and not releases.since(options.release, class.since) then
    local before = class.before
    return class_tensors.of(before.class, before.config(config), { prefix = options.prefix, is_outline = options.is_outline })
  end
  local values, texts = class:values(config, options.values)
  local function since(first)
    if options.asked then options.asked[first] = true end
    return options.release == nil or releases.since(options.release, first)
  end
  local out = setmetatable({ by_key = {}, sizes = {}, expected = {}, counts = {}, known_extents = {}, checked = {}, names = class:by_name(),
    values = values, texts = texts, class = class, config = config, is_outline = options.is_outline,
    given = options.given or config, prefix = options.prefix or "", release = options.release }, ClassTensors)
  out:flatten(class.nodes(values, since), out.prefix)
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
    local text = field and class_field.is_absent(self.given, count, field) and ("%s=%d"):format(count, self:size(count))
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
    if field.unbiased ~= nil and field.unbiased ~= field.default and class_field.is_absent(self.given, name, field) then
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
    local map, inner = class_field.place_of(self.given, one)
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

return class_tensors
