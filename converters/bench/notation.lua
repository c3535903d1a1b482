-- What a family's file may say: its words, and whether it is written with them.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local releases = require "converters.modelzoo.releases"
local rules = require "converters.engine.rules"

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

---Fields that hold something for a side, or for each.
local of_sides = { before = "table", after = "table", prepare = "function", finish = "function", fill = "table", nested = "table" }

local function fail(where, message, ...) cbk.fail("converter", where .. ": " .. message:format(...)) end

local function check_sides(object, where)
  for name, kind in pairs(of_sides) do
    local value = object[name]
    if value and type(value) ~= "table" then fail(where, "'%s' is of a side: %s = { right = … }", name, name) end
    for side, own in pairs(value or {}) do
      if not rules.other[side] then fail(where, "'%s' has the sides left and right, not '%s'", name, tostring(side)) end
      if type(own) ~= kind then fail(where, "%s.%s must be a %s", name, side, kind) end
    end
  end
  if type(object.prefix or false) ~= "boolean" and not rules.other[object.prefix] then
    fail(where, "'prefix' is true, false, or a side, not %s", tostring(object.prefix))
  end
end

---Hugging Face's format has nothing in common with a release, nor anything to become but one.
local function check_has_sides(converter, where)
  local count = 0
  for side = 1, 2 do
    local formats, set = catalogue.formats(converter[side])
    if set.hf and #formats > 1 then fail(where, "'%s': hf stands alone, without releases on its side", converter[side]) end
    count = count + (set.hf and 1 or 0)
  end
  if count == 2 then fail(where, "both sides are hf: a table leads from one format to another") end
end

---What stands between two releases is passed step by step, by tables of its own.
local function check_is_step(converter, where)
  for _, left in ipairs(catalogue.formats(converter[1])) do
    for _, right in ipairs(catalogue.formats(converter[2])) do
      if catalogue.is_step(left, right) then return end
    end
  end
  fail(where, "no release of '%s' stands beside one of '%s': a table is about one step, and those on the way are taken anyway",
    converter[1], converter[2])
end

---A field that nothing reads is a mistake in writing.
---@param what "model"|"converter"|"component"|"wrap"
local function check_fields(what, object, where)
  local known = {}
  for _, word in ipairs(notation.words[what]) do known[word] = true end
  for name in pairs(object) do
    if type(name) == "string" and not known[name] then
      fail(where, "a %s has no field '%s'; there are %s", what, name, table.concat(notation.words[what], ", "))
    end
  end
  check_sides(object, where)
  if what == "converter" and object.mup and object.mup ~= "gpt" and object.mup ~= "keys" and object.mup ~= "t5" then
    fail(where, "mup = '%s': there are 'gpt', 'keys', 't5' and false", tostring(object.mup))
  end
  if object.keys and not object.keys.is_rules then fail(where, "'keys' is not made by rules.keys") end
  if object.config and not object.config.is_fields then fail(where, "'config' is not made by fields.config") end
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
    elseif type(entry) ~= "table" or not releases.place[entry[1]] or entry[2] == nil then
      cbk.fail("converter", ("%s: since: '%s' is no { release, usual } with one of the releases %s"):format(where, name,
        table.concat(releases.known, ", ")))
    end
  end
end

---Refuses what is no list of models.
---@param models Model[]
---@param where string
function notation.check(models, where)
  if type(models) ~= "table" or type(models[1]) ~= "table" then fail(where, "it returns no list of models (see converters/README.md)") end
  for _, model in ipairs(models) do
    if type(model.model) ~= "string" then fail(where, "a model has no field 'model' (its name)") end
    check_fields("model", model, where)
    for side, known in pairs(model.since or {}) do
      if not rules.other[side] then fail(where, "'since' has the sides left and right, not '%s'", tostring(side)) end
      check_since(known, where)
    end
    for _, converter in ipairs(model) do
      check_fields("converter", converter, where)
      for side = 1, 2 do
        local fine, why = pcall(catalogue.formats, converter[side])
        if not fine then fail(where, "%s: %s", model.model, why.message or why) end
      end
      check_has_sides(converter, where)
      check_is_step(converter, where)
    end
  end
end

---A family's file as its models.
---@param path string
---@return Model[]
function notation.read(path)
  local chunk, why = loadfile(path)
  if not chunk then cbk.fail("converter", ("cannot read the converter '%s': %s"):format(path, why)) end
  local fine, models = pcall(chunk)
  if not fine then
    local text = type(models) == "table" and models.message or tostring(models)
    cbk.fail("converter", (text:gsub("\n.*", ""))) -- the places where a module was looked for
  end
  notation.check(models, path)
  return models
end

return notation
