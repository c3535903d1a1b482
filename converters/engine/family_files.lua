-- The schema of a family's file: its fields, their types, and the checks of a file.

local cbk = require "cbk"
local arguments = require "converters.notation.arguments"
local catalogue = require "converters.engine.catalogue"
local model_class = require "converters.engine.model_class"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local position = require "converters.notation.position"
local releases = require "converters.engine.releases"
local sandbox = require "converters.notation.sandbox"
local shapes = require "converters.notation.shapes"

local family_files = {}

-- --- the schema

local text, flag, func, map, sides = shapes.text, shapes.flag, shapes.func, shapes.table, shapes.sides

local formats = { says = "formats", mistake = function(value)
  local fine, why = pcall(catalogue.formats, value)
  return not fine and errors.text(why) or nil
end }

local release = shapes.of("one of the releases " .. table.concat(releases.known, ", "), function(value) return releases.place[value] end)
local usual = shapes.record("{ release, usual }", {
  release, shapes.any, says = text, warn = shapes.either(flag, shapes.one_of { "steps" }),
}, { 1, 2 })
local usuals = shapes.list(usual, "a list of { release, usual }")
local history = { says = "fields, each { release, usual }" }
function history.mistake(value, name) -- a section has fields of its own, a field may have several entries
  if type(value) ~= "table" then return shapes.table.mistake(value, name) end
  for field, one in pairs(value) do
    local first = type(one) == "table" and one[1]
    local shape = type(one) == "table" and first == nil and history or type(first) == "table" and usuals or usual
    local mistake = shape.mistake(one, ("%s.%s"):format(name, tostring(field)))
    if mistake then return ("'%s' must be { release, usual }: %s"):format(tostring(field), mistake) end
  end
end

local filled = shapes.list(shapes.record("{ key, function }", { text, func }, { 1, 2 }), "a list of { key, function }")
local names = shapes.list(text, "a list of names")
local texts = shapes.map(text, text, "strings by name: { a = \"b\" }")

local rules_of = arguments.made_by
local around = { -- what happens to configs
  config = rules_of.config, defaults = sides(map), prepare = sides(func), finish = sides(func),
  nested = sides(names), beside = names,
}
local a_class = shapes.of("a model class", function(value) return getmetatable(value) == model_class end)
local classes = shapes.record("'classes'", { left = a_class, right = a_class })
local of_file = { formats, formats, note = text, tool = shapes.one_of { "1.9.1", "2.0.3" } }
local of_model = {
  mup = shapes.one_of { "gpt", "bert", "t5", false },
  named_from = release, classes = classes,
  layout = sides(shapes.record("a pair of functions", { read = func, write = func }, { "read", "write" })),
}
local fill = { fill = sides(filled) }
local own_layout = { without_config = flag, files = sides(shapes.one_of { "torch", "safetensors", "h5", "mdl" }) }
local function with(...)
  local out = {}
  for _, one in ipairs { ... } do
    for name, shape in pairs(one) do out[name] = shape end
  end
  return out
end

local table_needs = { "keys", "config" }

local component = shapes.record("a component", with(rules_of, around, fill, {
  left = shapes.file_name, right = text, named = text, folders = texts, classes = classes,
  files = shapes.map(shapes.further_json, func, "functions by the names of JSON files, which are not config.json, an index or hidden"),
}), { "left", "right", unpack(table_needs) })
local variant = shapes.record("a variant", with(rules_of, around, fill, of_model, { note = text }), table_needs)
local wrap = shapes.record("wrap", {
  says = shapes.record("the field of each side", { left = text, right = text }, { "left", "right" }),
  called = shapes.map(text, shapes.either(text, func), "strings or functions by name"),
  models = names, place = text, copy = text,
}, { "says", "models", "place", "copy" })

---Every kind of table in a file. The kind of a converter is the one of `kinds` that it has.
---@type table<string, Shape>
family_files.records = {
  model = shapes.record("a model", {
    model = text, name = text, note = text, aliases = texts, history = history, classes = classes,
  }, { "model" }),
  keys = shapes.record("a converter", with(of_file, rules_of, around, fill, of_model, own_layout), table_needs),
  variants = shapes.record("a converter with variants", with(of_file, {
    variants = shapes.map(text, variant, "variants by names", true), choose = func,
  }), { "choose" }),
  components = shapes.record("a converter with components", with(of_file, around, of_model, {
    components = shapes.list(component, "a list of components"),
  }), { "config" }),
  wrap = shapes.record("a converter with wrap", with(of_file, { wrap = wrap, config = rules_of.config, named_from = release })),
  component = component, variant = variant, ["what wraps"] = wrap,
}

---A converter has exactly one of these.
local kinds = { "keys", "variants", "components", "wrap" }

-- --- checks

---@param at fun(field?: string): string   the place
local function fail(at, field, message, ...)
  cbk.fail("converter", message:format(...), { context = { at(field) } })
end

local function check(shape, object, at)
  local mistake, field = shape.mistake(object, "")
  if mistake then fail(at, field, "%s", mistake) end
end

---Which of the records a converter is.
local function kind_of(converter, at)
  local found = {}
  for _, kind in ipairs(kinds) do found[#found + 1] = converter[kind] and kind or nil end
  if converter[3] ~= nil then fail(at, nil, "a converter has a %s without a name; write keys = …, config = …", type(converter[3])) end
  if #found == 0 and converter.choose then fail(at, "choose", "a converter with 'choose' needs 'variants'") end
  for name in pairs(#found == 0 and converter or {}) do
    local near = type(name) == "string" and cbk.nearest(name, kinds, 1)[1]
    if near then fail(at, name, "a converter has no '%s'%s", name, naming.suggestion(near)) end
  end
  if #found ~= 1 then
    fail(at, found[2], "a converter needs exactly one of 'keys', 'variants', 'components' and 'wrap', found %s", #found == 0 and "none"
      or ("'%s' and '%s'"):format(found[1], found[2]))
  end
  return found[1]
end

---A side is either Hugging Face or releases, and not both sides are Hugging Face.
local function check_has_sides(converter, at)
  local count = 0
  for side = 1, 2 do
    local list, set = catalogue.formats(converter[side])
    if set.hf and #list > 1 then fail(at, nil, "'%s': a side is either hf or releases, not both", converter[side]) end
    count = count + (set.hf and 1 or 0)
  end
  if count == 2 then fail(at, nil, "both sides are hf; a table converts between two formats") end
end

---A table between releases describes one step; longer conversions take several steps.
local function check_is_step(converter, at)
  for _, left in ipairs(catalogue.formats(converter[1])) do
    for _, right in ipairs(catalogue.formats(converter[2])) do
      if catalogue.is_step(left, right) then return end
    end
  end
  fail(at, nil, "no release of '%s' is next to one of '%s'; a table describes one step, and conversions take as many as they need",
    converter[1], converter[2])
end

---Two formats have one table, which works in both directions.
---@param places table<string, fun(field?: string): string>   of earlier tables, by the two formats
local function check_pairs(converter, at, places)
  for _, left in ipairs(catalogue.formats(converter[1])) do
    for _, right in ipairs(catalogue.formats(converter[2])) do
      if left == right then fail(at, nil, "'%s' is on both sides", left) end
      local pair = left < right and left .. " <-> " .. right or right .. " <-> " .. left
      if places[pair] and places[pair] ~= at then
        fail(at, nil, "two tables are for %s <-> %s: this one and the one at %s; one table works in both directions", left, right,
          places[pair]())
      end
      places[pair] = at
    end
  end
end

---Each name is of one model of the file.
---@param seen table<string, fun(): string>   the places of earlier models, by name
local function check_names(model, at, seen)
  for name in pairs(with({ [model.model] = true }, model.aliases or {})) do
    if seen[name] then fail(at, nil, "two models are named '%s': this one and the one at %s", name, seen[name]()) end
    seen[name] = at
  end
end

---Each part of a composite has a folder and a section of its own.
---@param converter Converter
local function check_parts(converter, at)
  for side in pairs { left = true, right = true } do
    local seen = {}
    for _, part in ipairs(converter.components or {}) do
      if seen[part[side]] then fail(at, "components", "two components have the same %s, '%s'", side, part[side]) end
      seen[part[side]] = true
    end
  end
end

---Refuses what has no effect on a side: containers of formats that have one already, and what only files of a release have.
---@param converter Converter
local function check_has_effect(converter, at)
  local has_release = false
  for place, side in ipairs { "left", "right" } do
    local format = catalogue.formats(converter[place])[1]
    has_release = has_release or catalogue.release(format) ~= nil
    if converter.files and converter.files[side] and not catalogue.is_own_layout(format) then
      fail(at, "files", "'files.%s' has no effect: '%s' is not a layout of one's own, and its files are written as its programs read them",
        side, converter[place])
    end
  end
  for _, name in ipairs(has_release and {} or { "beside", "mup", "named_from", "tool" }) do
    if converter[name] ~= nil then fail(at, name, "'%s' has no effect: neither side is a release of the Model Zoo", name) end
  end
end

---@param place_of fun(...: string): fun(field?: string): string   the place of the next table with these strings
local function check_converters(model, at, place_of)
  local seen = {}
  for place = 1, table.maxn(model) do
    local converter = model[place]
    if type(converter) ~= "table" then fail(at, nil, "entry %d of model '%s' must be a converter (a table)", place, model.model) end
    if type(converter[1]) ~= "string" or type(converter[2]) ~= "string" then
      fail(at, nil, "a converter of '%s' must begin with its two formats: { \"hf\", \"cs-2.1 .. cs-2.9\", keys = …, … }", model.model)
    end
    local own = place_of(converter[1], converter[2])
    catalogue.complete_step(converter)
    local kind = kind_of(converter, own)
    local is_own = catalogue.has_own_layout(converter)
    if is_own and kind ~= "keys" then
      fail(own, kind, "a converter between layouts of one's own needs 'keys', not '%s': write a model for each variant or part", kind)
    end
    check(family_files.records[kind], converter, own)
    check_parts(converter, own)
    check_has_sides(converter, own)
    check_has_effect(converter, own)
    check_is_step(converter, own)
    check_pairs(converter, own, seen)
  end
end

---The places of a file's tables, found when they are asked for.
local function places_in(where)
  local counts = {}
  return function(...)
    local words, id = { ... }, table.concat({ ... }, " ")
    counts[id] = (counts[id] or 0) + 1
    local count = counts[id]
    return function(field) return position.of_table(where, words, count, field) end
  end
end

---Refuses a file's result if it is not a valid list of models. What a step between releases leaves out is added.
---@param models Model[]
---@param where string   the file
function family_files.check(models, where)
  local function at_file() return where end
  if type(models) == "table" and models.model ~= nil then
    fail(at_file, nil, "the file returns one model; it must return a list of models: return { { model = …, … } }")
  end
  if type(models) ~= "table" or models[1] == nil then
    fail(at_file, nil, "the file must return a list of models (see `cbk help converters`)")
  end
  local place_of, seen = places_in(where), {}
  for i, model in ipairs(models) do
    if type(model) ~= "table" then fail(at_file, nil, "entry %d of the returned list must be a model: { model = …, … }", i) end
    local at = type(model.model) == "string" and place_of(model.model) or at_file
    local named = {}
    for name, value in pairs(model) do
      if type(name) == "string" then named[name] = value end
    end
    check(family_files.records.model, named, at)
    check_names(model, at, seen)
    check_converters(model, at, place_of)
  end
end

---Raises what a converter's file raised while it was read, as an error of that file where it says the place.
local function fail_to_run(problem, path)
  if type(problem) == "table" then error(problem, 0) end
  local lines = errors.text(problem) -- of a module that is missing, with the places where it was looked for
  cbk.fail("converter", lines:match "^[^\n]*", { file = path })
end

---A family's file as its models.
---@param path string
---@param is_sandboxed? boolean   it has no rights
---@return Model[]
function family_files.read(path, is_sandboxed)
  if is_sandboxed then position.restrict(path) end
  local chunk, why
  if is_sandboxed then chunk, why = sandbox.load(path) else chunk, why = loadfile(path, "t") end
  if not chunk then cbk.fail("converter", ("cannot read the converter: %s"):format(why), { file = path }) end
  local fine, models = pcall(chunk)
  if not fine then fail_to_run(models, path) end
  local fits, problem = pcall(family_files.check, models, path)
  if not fits then error(errors.with(problem, { file = path }), 0) end
  for _, model in ipairs(models) do
    for _, converter in ipairs(model) do converter.own_file = position.file(path) end
  end
  return models
end

return family_files
