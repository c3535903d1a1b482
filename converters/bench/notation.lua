-- What a family's file may say: its words, and whether it is written with them.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local releases = require "converters.modelzoo.releases"

local notation = {}

---Every field that models, converters, the parts of a composite and wrappers may have.
notation.words = {
  model = { "model", "name", "aliases", "note", "since" },
  converter = {
    "keys", "config", "before", "after", "prepare", "finish", "fill", "mup", "prefix", "tool", "only_model",
    "named_from", "choose", "variants", "components", "wrap", "nested", "note",
  },
  component = {
    "left", "right", "keys", "config", "before", "after", "prepare", "finish", "fill", "nested", "beside", "folders", "files",
  },
  wrap = { "says", "called", "models", "place", "copy" },
}

local function check_formats(converter, where)
  for side = 1, 2 do
    for _, format in ipairs(catalogue.formats(converter[side])) do
      if format ~= "hf" and not releases.place[catalogue.release(format) or ""] then
        cbk.fail("converter", ("%s: '%s' is no format; there are hf and cs-X.Y, with X.Y one of %s"):format(where, format,
          table.concat(releases.known, ", ")))
      end
    end
  end
end

---A field that nothing reads is a mistake in writing.
---@param what "model"|"converter"|"component"|"wrap"
local function check_fields(what, object, where)
  local known = {}
  for _, word in ipairs(notation.words[what]) do known[word] = true end
  for name in pairs(object) do
    if type(name) == "string" and not known[name] then
      cbk.fail("converter", ("%s: a %s has no field '%s'; there are %s"):format(where, what, name,
        table.concat(notation.words[what], ", ")))
    end
  end
  if object.keys and not object.keys.is_rules then cbk.fail("converter", where .. ": 'keys' is not made by rules.keys") end
  if object.config and not object.config.is_fields then cbk.fail("converter", where .. ": 'config' is not made by fields.config") end
  for _, variant in pairs(object.variants or {}) do check_fields("converter", variant, where) end
  for _, part in ipairs(object.components or {}) do check_fields("component", part, where) end
  if object.wrap then check_fields("wrap", object.wrap, where) end
end

---Releases that fields came with (modelzoo/since.lua).
local function check_since(known, where)
  for name, entry in pairs(known) do
    local is_section = type(entry) == "table" and entry[1] == nil
    if is_section then
      check_since(entry, where)
    elseif type(entry) ~= "table" or not releases.place[entry[1]] then
      cbk.fail("converter", ("%s: since: '%s' is no { release, usual } with one of the releases %s"):format(where, name,
        table.concat(releases.known, ", ")))
    end
  end
end

---Refuses what is no list of models.
---@param models Model[]
---@param where string
function notation.check(models, where)
  if type(models) ~= "table" or type(models[1]) ~= "table" then
    cbk.fail("converter", ("%s does not return a list of models (see converters/README.md)"):format(where))
  end
  for _, model in ipairs(models) do
    if type(model.model) ~= "string" then cbk.fail("converter", ("%s: a model has no field 'model' (its name)"):format(where)) end
    check_fields("model", model, where)
    for _, known in pairs(model.since or {}) do check_since(known, where) end
    for _, converter in ipairs(model) do
      check_fields("converter", converter, where)
      check_formats(converter, where)
    end
  end
end

---A family's file as its models.
---@param path string
---@return Model[]
function notation.read(path)
  local chunk, why = loadfile(path)
  if not chunk then cbk.fail("converter", ("cannot read the converter '%s': %s"):format(path, why)) end
  local models = chunk()
  notation.check(models, path)
  return models
end

return notation
