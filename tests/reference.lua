-- Writes converters/REFERENCE.md from the annotations of what a converter's author can write: cbk run tests/reference.lua
-- An annotation that begins with "…" continues the entry above it.

local cbk = require "cbk"
local annotations = require "cbk.annotations"
local actions = require "converters.vocabulary.actions"
local buffers = require "converters.vocabulary.buffers"
local class = require "converters.engine.class"
local counts = require "converters.vocabulary.counts"
local decoder = require "converters.shared.decoder"
local evidence = require "converters.vocabulary.evidence"
local entries = require "converters.notation.entries"
local fields = require "converters.engine.fields"
local heads = require "converters.vocabulary.heads"
local kinds = require "converters.engine.kinds"
local layouts = require "converters.vocabulary.layouts"
local family_files = require "converters.engine.family_files"
local rotary = require "converters.vocabulary.rotary"
local rules = require "converters.engine.rules"
local values = require "converters.vocabulary.values"

local reference = {}

local root = debug.getinfo(1, "S").source:match "^@(.*)tests/reference%.lua$" or ""

---@class Section
---@field part? string[]      a part of the page begins here: its title, and what it is for
---@field title string
---@field file string         below converters/, which has the annotations
---@field intro string
---@field module? table       its functions and values are described
---@field prefix? string      the module's name in converters; of a class, the name of an argument that is of the class
---@field class? string       in place of a module: its fields and methods are described
---@field records? string[]   the tables of engine/family_files.lua that accept these fields
---@field accepted? table     or a table that accepts these fields, by name
---@field calls? boolean      the accepted fields are functions
---@field within? string      a pattern of files that have examples

---@type Section[]
local sections = {
  { part = { "The language", "What every converter is written in." },
    title = "A model", file = "engine/catalogue.lua", class = "Model", records = { "model" },
    intro = "A family's file returns a list of models. Each is a table with these fields and its converters." },
  { title = "A converter", file = "engine/catalogue.lua", class = "Converter",
    records = { "keys", "variants", "components", "wrap", "variant" },
    intro = "`{ \"hf\", \"cs-2.1 .. cs-2.9\", keys = …, config = … }`: a table between two formats. Exactly one of `keys`, `variants`, "
      .. "`components` and `wrap` is required; between two releases, keys and "
      .. "fields without rules are copied. `{ left = …, right = … }` holds a value for each side; either may be left out." },
  { title = "Key rules", file = "engine/rules.lua", module = rules, prefix = "rules",
    intro = "`local rules = require \"converters.engine.rules\"`. `left` and `right` are forms of the function, one for each side." },
  { title = "Options of a key rule", file = "notation/entries.lua", class = "KeyOptions", accepted = entries.options,
    intro = "`{ left, right, action, when = … }`." },
  { title = "What an action gets", file = "engine/keys.lua", class = "At", prefix = "at",
    intro = "`function(value, at)`: `at` in actions and in `when`, `also_left`, `also_right` and `fill`." },
  { title = "Config rules", file = "engine/fields.lua", module = fields, prefix = "fields",
    intro = "`local fields = require \"converters.engine.fields\"`. `left` and `right` are forms of the function, one for each side." },
  { title = "What a function on a config value gets", file = "engine/sections.lua", class = "FieldAt", prefix = "at",
    intro = "`function(value, at)`." },
  { title = "What `prepare` and `finish` get", file = "engine/sections.lua", class = "Read", prefix = "read",
    intro = "`function(config, given, read)` and `function(to, from, read)`: `read` is the checkpoint that is converted with the config." },
  { part = { "Models of several parts", "For LLaVA, DPR and DPO; most converters need none of it." },
    title = "A component", file = "engine/catalogue.lua", class = "Component", records = { "component" }, within = "components = ",
    intro = "One of several models in one checkpoint, such as the image model of LLaVA. It has the fields of a converter, without formats, "
      .. "and these." },
  { title = "A wrapper", file = "engine/wrap.lua", class = "Wrap", records = { "what wraps" }, within = "wrap = ",
    intro = "The value of a converter's `wrap`: how a model contains another one. DPO has a LLaMA, for example, under two prefixes." },
  { part = { "Libraries", "Look here before you write a function of your own." },
    title = "Actions on tensors", file = "vocabulary/actions.lua", module = actions, prefix = "actions",
    intro = "`local actions = require \"converters.vocabulary.actions\"`. An action is the third entry of a key rule. What it computes "
      .. "with is read from the right config." },
  { title = "Functions on config values", file = "vocabulary/values.lua", module = values, prefix = "values",
    intro = "`local values = require \"converters.vocabulary.values\"`. A pair of functions is the third entry of a config rule." },
  { title = "Rotary positions", file = "vocabulary/rotary.lua", module = rotary, prefix = "rotary",
    intro = "`local rotary = require \"converters.vocabulary.rotary\"`." },
  { title = "Attention heads", file = "vocabulary/heads.lua", module = heads, prefix = "heads",
    intro = "`local heads = require \"converters.vocabulary.heads\"`." },
  { title = "Layouts of tensors", file = "vocabulary/layouts.lua", module = layouts, prefix = "layouts",
    intro = "`local layouts = require \"converters.vocabulary.layouts\"`: actions with numbers of your own." },
  { title = "Counts", file = "vocabulary/counts.lua", module = counts, prefix = "counts",
    intro = "`local counts = require \"converters.vocabulary.counts\"`: numbers from configs and keys." },
  { title = "Buffers", file = "vocabulary/buffers.lua", module = buffers, prefix = "buffers",
    intro = "`local buffers = require \"converters.vocabulary.buffers\"`: tensors of given shapes, for `fill` and the like." },
  { title = "Evidence", file = "vocabulary/evidence.lua", module = evidence, prefix = "evidence",
    intro = "`local evidence = require \"converters.vocabulary.evidence\"`: for facts that `cbk infer` has from one pair." },
  { title = "Kinds of values", file = "engine/kinds.lua", module = kinds, prefix = "kinds",
    intro = "For functions of your own: `local kinds = require \"converters.engine.kinds\"`." },
  { title = "Decoder families", file = "shared/decoder.lua", module = decoder, prefix = "decoder",
    intro = "`local decoder = require \"converters.shared.decoder\"`: what the Model Zoo's decoder models have in common." },
  { part = { "Model classes", "For a class that `converters/classes/` does not have yet." },
    title = "Model classes", file = "engine/class.lua", module = class, prefix = "class",
    intro = "`local class = require \"converters.engine.class\"`." },
  { title = "Kinds of fields", file = "engine/field_kinds.lua", class = "FieldKinds", accepted = class.kinds, calls = true,
    within = "class%.makers",
    intro = "`local size, rate = class.makers \"size rate\"`, then `{ width = size(768), dropout = rate(0.1) }` with the default of each "
      .. "field. A value of another kind is refused." },
  { title = "Fields of a class", file = "engine/class.lua", class = "ClassTable", within = "class.new",
    intro = "`class.new \"NAME\" { fields = …, tensors = … }`." },
  { title = "Options of a tensor", file = "engine/class.lua", class = "TensorOptions", within = "class.new",
    intro = "`{ \"lm_head.weight\", { \"vocab_size\", \"hidden_size\" }, tied = … }`: key and shape of a tensor, and these." },
}

-- --- entries

---@class Entry
---@field names string[]     "rules.each", "model"
---@field shown string[]     the names as the reference shows them: "rules.each(pattern, letter, count)"
---@field text string
---@field patterns string[]  how a file uses one of them

---The sentences of an annotation, and those of its parameters.
local function text_of(annotation)
  local text = table.concat(annotation.text, " ")
  for _, param in ipairs(annotation.params) do
    if param.text ~= "" then text = ("%s `%s`: %s"):format(text:gsub("([^.])$", "%1."), param.name:gsub("%?$", ""), param.text) end
  end
  return (text:gsub("^%s+", ""):gsub("([^.])$", "%1."))
end

---Adds an entry. An annotation "…" alone is one more name of the last entry, "… text" an entry that continues it.
local function add(out, name, shown, text, pattern)
  local last, more = out[#out], text:match "^…%s*(.-)%.?$"
  if not (more == "" and last) then
    last = { names = {}, shown = {}, text = more and ("… %s."):format(more) or text:gsub("^%l", string.upper), patterns = {} }
    out[#out + 1] = last
  end
  table.insert(last.names, name)
  table.insert(last.shown, shown)
  table.insert(last.patterns, pattern)
end

local function whole_word(name) return "%f[%w_]" .. name:gsub("%.", "%%.") .. "%f[^%w_]" end

---@param section Section
local function add_class(out, section, annotation)
  for _, field in ipairs(annotation.fields) do
    local name = field.name:gsub("%?$", "")
    local shown = section.prefix and section.prefix .. "." .. name or name
    local pattern = section.prefix and whole_word(shown) or "%f[%w_]" .. name .. (section.calls and "[ (][\"%w]" or " = ")
    if not name:find "^%[" then add(out, name, shown, text_of { text = { field.text }, params = {} }, pattern) end
  end
end

---@param section Section
---@return Entry[]
local function entries_of(section)
  local out = {}
  for _, annotation in ipairs(annotations.read(root .. "converters/" .. section.file)) do
    local name, signature = annotation.name, annotation.signature:gsub(" → .*$", "")
    local method = section.class and name:match("^" .. section.class .. ":(.*)$")
    local is_public = not annotation.is_private -- what is private is the engine's own
    if is_public and section.class == name then
      add_class(out, section, annotation)
    elseif is_public and method and annotation.is_documented then
      local own = section.prefix .. ":" .. method
      add(out, method, section.prefix .. signature:sub(#section.class + 1), text_of(annotation), whole_word(own))
    elseif is_public and section.module and #annotation.text > 0 and name:match "^[^.:]+" == section.prefix then
      local code, text = text_of(annotation):match "^`([^`]*)`: (.*)$"
      add(out, name, code or signature, text or text_of(annotation), whole_word(name))
    end
  end
  return out
end

-- --- examples

local function read_folder(folder, names, out)
  for _, name in ipairs(names) do
    local text = cbk.fs.read(root .. "converters/" .. folder .. name)
    out[#out + 1] = { name = folder .. name, text = text:gsub("%-%-[^\n]*", ""):gsub("%f[%w_]here%f[^%w_]", "at") }
  end
end

local function lua_files(folder)
  local out = {}
  for _, name in ipairs(cbk.fs.list(root .. "converters/" .. folder)) do
    if name:find "%.lua$" then out[#out + 1] = name end
  end
  return out
end

---Where to look for examples, plain families first.
local function files()
  local out, first = {}, { "gpt2.lua", "llama.lua", "t5.lua", "falcon.lua" }
  read_folder("", first, out)
  for _, folder in ipairs { "", "shared/", "classes/hf/", "classes/zoo/" } do read_folder(folder, lua_files(folder), out) end
  return out
end

---What has all of these patterns. A nested name may be used through a local one: `local rotary = actions.rotary`.
---@param patterns string[]
---@return string|nil   a file
local function user_of(patterns, within, all)
  for _, file in ipairs(all) do
    local has_all = not within or file.text:find(within)
    for _, pattern in ipairs(patterns) do has_all = has_all and file.text:find(pattern) end
    if has_all then return file.name end
  end
end

---@return string   "`gpt2.lua`", or nothing
local function example_of(entry, section, all)
  local file
  for _, pattern in ipairs(entry.patterns) do file = file or user_of({ pattern }, section.within, all) end
  for _, name in ipairs(section.module and entry.names or {}) do
    local owner, own = name:match "^(.*%..*)%.([%w_]+)$"
    file = file or owner and user_of({ whole_word(owner), "[ .(]" .. own .. "%f[^%w_]" }, section.within, all)
  end
  return file and "`" .. file .. "`" or ""
end

-- --- the page

local HEAD = [[
<!-- Written by `cbk run tests/reference.lua` from the comments at the definitions. Change those, not this file. -->

# Reference of converters

Everything that a converter's author can write. [README.md](README.md) is the tutorial; start there.
The last column names a file that uses the entry. A meaning that begins with "…" continues the row above.
]]

local function cell(text) return (text:gsub("|", "\\|")) end

---@return string text, integer count   of the entries
function reference.text()
  local out, count, all = { HEAD }, 0, files()
  for _, section in ipairs(sections) do
    if section.part then out[#out + 1] = ("## %s\n\n%s\n"):format(unpack(section.part)) end
    out[#out + 1] = ("### %s\n\n%s\n\n| name | meaning | example |\n|---|---|---|"):format(section.title, section.intro)
    for _, entry in ipairs(entries_of(section)) do
      local names = {}
      for i, shown in ipairs(entry.shown) do names[i] = "`" .. cell(shown) .. "`" end
      out[#out + 1] = ("| %s | %s | %s |"):format(table.concat(names, ", "), cell(entry.text), example_of(entry, section, all))
      count = count + 1
    end
    out[#out + 1] = ""
  end
  return (table.concat(out, "\n"):gsub("\n+$", "\n")), count
end

-- --- what is missing

---@param section Section
local function check_records(section, described, problems)
  local accepted = {}
  for name in pairs(section.accepted or {}) do accepted[name] = true end
  for _, record in ipairs(section.records or {}) do
    for name in pairs(family_files.records[record].fields) do accepted[name] = type(name) == "string" or nil end
  end
  for name in pairs(accepted) do
    if not described[section.class][name] and not (described.Converter[name] and section.class == "Component") then
      problems[#problems + 1] = ("'%s' has no ---@field of the class %s in converters/%s"):format(name, section.class, section.file)
    end
  end
  for name in pairs(described[section.class]) do
    if not accepted[name] then
      problems[#problems + 1] = ("converters/%s describes %s.%s, which the notation does not accept"):format(section.file,
        section.class, name)
    end
  end
end

---What of a library has no comment.
local function check_library(section, library, path, known, problems)
  for key, value in pairs(library) do
    local name = path .. "." .. key
    local is_library = type(value) == "table" and rawget(value, "forward") == nil
    if not known[name] and is_library then
      check_library(section, value, name, known, problems)
    elseif not known[name] then
      problems[#problems + 1] = ("converters/%s: '%s' has no comment above its definition (---, or ---@private if the engine's own)")
        :format(section.file, name)
    end
  end
end

local function exists(library, path)
  for part in path:gmatch "[^.]+" do library = type(library) == "table" and rawget(library, part) or nil end
  return library ~= nil
end

---What the notation accepts and no entry describes, and entries of what there is not.
---@return string[]
function reference.problems()
  local out, described = {}, {}
  for _, section in ipairs(sections) do
    local names = {}
    for _, entry in ipairs(entries_of(section)) do
      for _, name in ipairs(entry.names) do names[name] = true end
    end
    if next(names) == nil then out[#out + 1] = ("section '%s' has no entries"):format(section.title) end
    if section.class then described[section.class] = names end
    if section.module then
      for name in pairs(names) do
        if not exists(section.module, name:match "%.(.*)$") then out[#out + 1] = ("there is no '%s'"):format(name) end
      end
      for _, annotation in ipairs(annotations.read(root .. "converters/" .. section.file)) do
        if annotation.is_private then names[annotation.name] = true end
      end
      check_library(section, section.module, section.prefix, names, out)
    end
  end
  for _, section in ipairs(sections) do
    if section.records or section.accepted then check_records(section, described, out) end
  end
  table.sort(out)
  return out
end

if ... == "reference" then return reference end -- in a test

local text, count = reference.text()
cbk.fs.write(root .. "converters/REFERENCE.md", text, { overwrite = true })
for _, problem in ipairs(reference.problems()) do io.stderr:write(problem, "\n") end
print(("converters/REFERENCE.md: %d entries"):format(count))
