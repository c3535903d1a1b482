-- The models, the formats that each converts between, and the steps from one format to another.

local cbk = require "cbk"
local releases = require "converters.engine.releases"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"
local wrap = require "converters.engine.wrap"

local catalogue = {}

---@class Converter   One table between two formats. If both sides are releases, its rules are about two adjacent ones.
---@field [1] string        left formats: "hf", "cs-1.8, cs-1.9"
---@field [2] string        right formats: "cs-2.1 .. cs-2.9"
---@field keys Rule[]       The key rules: `rules.keys { … }`.
---@field config table[]    The config rules: `fields.config { … }`.
---@field defaults? table<Side, table>   Per side: values of fields that a config leaves out, if they are not the class's. A function
---                                    computes one from the other fields. `fields.none`: the field has no default.
---@field prepare? table<Side, fun(config: Dict, given: Dict, read: Read): Dict?>   Per side: `function(config, given, read)` on a config
---                                    that is read, before the rules. It changes the config or returns another. `given` lacks the defaults.
---@field finish? table<Side, fun(to: Dict, from: Dict, read: Read): Dict?>   Per side: `function(to, from, read)` on a config that is
---                                    written, at the end. `from` is the config that was read.
---@field fill? table<Side, table[]>   Per side: `{ { key, function(at) }, … }`, tensors to make if nothing wrote the key. nil makes none.
---@field nested? table<Side, string[]>   Per side: sections of the config that config rules see as `attn_config.alibi`.
---@field layout? table<Side, { read: fun(config: Dict): (Dict), write: fun(config: Dict): Dict }>   Per side: functions for a model section
---                                    whose layout in files is not that of the rules. `read(section)` returns the rules' layout; it is
---                                    called before everything else. `write(section)` returns the file's layout; it is called last.
---@field beside? string[]             Fields that a Model Zoo config has beside the model section, and that config rules see as if they
---                                    were in it.
---@field mup? "gpt"|"bert"|"t5"|false   How muP multipliers are folded into the weights on the way to Hugging Face: as in `"gpt"`,
---                                    `"bert"` or `"t5"`. Without it, a muP config is refused; with `false`, its fields are like any other.
---@field tool? "1.9.1"|"2.0.3"        The release of the original converter whose output files are imitated. `"2.0.3"` takes one extension
---                                    off a file's name, not all. `"1.9.1"` writes a Hugging Face output as one shard.
---@field named_from? string           The first release whose configs get `model.name` (default: 2.4).
---@field variants? table<string, Converter>   Converters without formats, by name. `choose` selects one of them.
---@field choose? fun(config: Dict, side: Side): string   `function(config, side)` returns the name of the variant.
---@field components? Component[]      A list of models side by side. `config` is then about the whole.
---@field wrap? Wrap                   A model inside this one, converted by its own tables. `config` is added to them.
---@field classes? Classes             The model classes of both sides, if they are not those of the model.
---@field note? string                 A text for `cbk list`, if it is not the model's.
---@field without_config? boolean      It computes nothing with a config: `cbk convert` needs none.
---@field files? table<Side, string>   Per side that is a layout of its own (a format such as `"a"`): what it is written as, `"torch"`,
---                                    `"safetensors"`, `"h5"` or `"mdl"` (a Cerebras checkpoint). Else it is written as the input is.

---@class Classes   The model classes of both sides.
---@field left? Class
---@field right? Class

---@class Component: Converter   One model of a composite.
---@field left string    The component's folder in the Hugging Face files: "image_model".
---@field right string   The component's section of the Model Zoo's config. The keys of all components are in one checkpoint.
---@field named? string   The section's `name` since 2.4.
---@field folders? table<string, string>   Fields of the component's Hugging Face config that contain the folder of another component:
---                                    `{ mm_vision_tower = "image_model" }`.
---@field files? table<string, fun(config: Dict): table>   More JSON files to write into the folder:
---                                    `{ ["preprocessor_config.json"] = function(config) … end }`.

---@class Model
---@field model string                 Its name for `--model`.
---@field name? string                 Its name in the Model Zoo, if that differs: configs have it as `model.name` since 2.4.
---@field aliases? table<string, string>   Further names for `--model`, each with its name in the Model Zoo.
---@field note? string                 A text for `cbk list`, usually both classes.
---@field classes? Classes             The model classes of both sides: `{ left = …, right = … }`. They have the fields and tensors.
---@field history? History            Fields of Hugging Face configs: `{ field = { release, usual } }`. Older releases cannot express
---                                    another value than the usual one, so such a config is refused. `warn` makes it a warning. The
---                                    Model Zoo's fields have this in their classes.
---@field [integer] Converter

-- --- formats

local read = {} -- by text

---Whether a format is a layout of a user's own: a lower-case letter.
---@param text string
function catalogue.is_own_layout(text) return text:find "^%l$" ~= nil end

---Whether a converter has a layout of the user's own.
---@param converter Converter
function catalogue.has_own_layout(converter)
  return catalogue.is_own_layout(converter[1]) or catalogue.is_own_layout(converter[2])
end

local function is_format(text)
  local release, kind = text:match "^cs%-(%d+%.%d+)(.*)$"
  if text == "hf" or catalogue.is_own_layout(text) then return true end
  return releases.place[release or ""] ~= nil and (kind == "" or kind:find "^%-%a[%w-]*$" ~= nil)
end

---"cs-1.8, cs-2.0 .. cs-2.2" as a list, and as a set.
---@param text string
---@return string[] list, table<string, true> set
function catalogue.formats(text)
  if read[text] then return unpack(read[text]) end
  local function fail(message, ...) cbk.fail("converter", message:format(...)) end
  if type(text) ~= "string" then fail 'a converter begins with its two formats: { "hf", "cs-2.1 .. cs-2.9", keys = …, config = … }' end
  local list, set = {}, {}
  local function add(format)
    if not is_format(format) then
      fail("'%s' is not a format; known: hf, cs-X.Y and 'cs-X.Y .. cs-X.Y', with X.Y one of %s", format,
        table.concat(releases.known, ", "))
    end
    list[#list + 1], set[format] = format, true
  end
  for item in (text .. ","):gmatch "%s*(.-)%s*," do
    item = item:gsub("cs%-[%w.]+", catalogue.resolve)
    local from, own, to, kind = item:match "^cs%-(%d+%.%d+)(%S*)%s*%.%.%s*cs%-(%d+%.%d+)(%S*)$"
    local first, last = releases.place[from or item], releases.place[to or item]
    if not (first and last and own == kind) then
      add(item)
    else
      if first >= last then fail("'%s' must go from an older release to a newer one", item) end
      for i = first, last do add("cs-" .. releases.known[i] .. kind) end
    end
  end
  read[text] = { list, set }
  return list, set
end

---Whether a text of formats names one.
---@param text string
---@param format string
function catalogue.names_format(text, format) return select(2, catalogue.formats(text))[format] == true end

---The release of a CS format ("2.4" of "cs-2.4-dpo"), or nil.
function catalogue.release(format) return format:match "^cs%-(%d+%.%d+)" end

catalogue.since = releases.since

---The index of a CS format's release, and its kind: the text after the release ("", "-dpo"). Nothing for other formats.
---@param format string
---@return integer|nil place, string|nil kind
local function place_of(format)
  local release, kind = format:match "^cs%-(%d+%.%d+)(.*)$"
  local place = releases.place[release or ""]
  if place then return place, kind end
end
catalogue.place_of = place_of

---Every format that a model's tables name.
---@param model Model
---@return string[]
function catalogue.formats_of(model)
  local out, seen = {}, {}
  for _, converter in ipairs(model) do
    for _, text in ipairs { converter[1], converter[2] } do
      for _, format in ipairs(catalogue.formats(text)) do
        if not seen[format] then out[#out + 1], seen[format] = format, true end
      end
    end
  end
  return out
end

---The kind of a model's CS formats: "" if one of them has none, else that of the newest ("-dpo").
---@param model Model
---@return string
local function kind_of(model)
  local newest, kind = 0, ""
  for _, format in ipairs(catalogue.formats_of(model)) do
    local place, own = place_of(format)
    if own == "" then return "" end
    if place and place > newest then newest, kind = place, own end
  end
  return kind
end

---The format of a release as the model names it: "cs-2.4", "cs-2.4-dpo".
---@param model Model
---@param release string
---@return string
function catalogue.format_at(model, release) return "cs-" .. release .. kind_of(model) end

---Resolves cs-current, and later releases that changed no layout, to the newest format. Returns other formats unchanged.
---@param format string
---@param model? Model   the model that cs-current is resolved for
---@return string
function catalogue.resolve(format, model)
  if format == "cs-current" and model then return catalogue.format_at(model, releases.newest) end
  local kind = format:match "^cs%-current(.*)$"
  if kind then return "cs-" .. releases.newest .. kind end
  local release, own = format:match "^cs%-(%d+%.%d+)(.*)$"
  return releases.unchanged[release] and "cs-" .. releases.newest .. own or format
end

-- --- models

local by_name = {} -- model name or alias: { Model, name in the Model Zoo, file }

---Gives a model's classes to its tables between Hugging Face and a release, and to those of a user's layouts, unless these have their own.
---@param model Model
function catalogue.describe(model)
  for _, converter in ipairs(model) do
    local has_both = converter[1] == "hf" or catalogue.has_own_layout(converter)
    for _, own in pairs(has_both and (converter.variants or { converter }) or {}) do
      own.classes = own.classes or model.classes
    end
  end
end

---Adds a family file's models (engine/family_files.lua checks them).
---@param models Model[]
---@param where string       the file
---@param is_own? boolean    the user's own: it takes precedence over a family of that name
function catalogue.add(models, where, is_own)
  local function add(name, model, zoo_name)
    local earlier = by_name[name]
    if earlier and not earlier.is_own and earlier[3] ~= where then
      cbk.fail("converter", ("there are two models '%s': in '%s' and in '%s'"):format(name, earlier[3], where))
    end
    by_name[name] = earlier or { model, zoo_name, where, is_own = is_own }
  end
  for _, model in ipairs(models) do
    catalogue.describe(model)
    add(model.model, model, model.name or model.model)
    for alias, zoo_name in pairs(model.aliases or {}) do add(alias, model, zoo_name) end
  end
end

local waiting = {} -- family files that are not loaded yet: module to a function that adds its models

---Registers every family file of a folder. A file is loaded when its model is needed: loading all of them takes longer than a small
---conversion.
---@param folder string
---@param check fun(models: any, where: string)   fails if it is not a list of models
function catalogue.load_folder(folder, check)
  for _, name in ipairs(cbk.fs.list(folder)) do
    local module = name:match "^([%w_-]+)%.lua$"
    if module then
      waiting[module] = function()
        local models, path = require("converters." .. module), cbk.fs.join(folder, name)
        check(models, path)
        catalogue.add(models, path)
      end
    end
  end
end

local function load_file(module)
  local add = waiting[module]
  waiting[module] = nil
  if add then add() end
end

local function load_all()
  if next(waiting) == nil then return end
  collectgarbage "stop" -- nothing that is loaded becomes garbage
  local fine, problem = pcall(function()
    for _, module in ipairs(naming.sorted(waiting)) do load_file(module) end
  end)
  collectgarbage "restart"
  if not fine then error(problem, 0) end
end

---Loads the file that is named after a model, or all files if that one does not have the model.
local function load_for(name)
  if by_name[name] or next(waiting) == nil then return end
  load_file((tostring(name):gsub("%-headless$", ""):gsub("%-", "_")))
  if not by_name[name] then load_all() end
end

---The entry of a model; case does not matter.
local function entry_of(name)
  load_for(name)
  if by_name[name] or type(name) ~= "string" then return by_name[name] end
  local wanted = name:lower()
  if wanted ~= name and by_name[wanted] then return by_name[wanted] end
  for known, entry in pairs(by_name) do
    if known:lower() == wanted then return entry end
  end
end

---@return Model|nil, string|nil zoo_name
function catalogue.find(name)
  local entry = entry_of(name)
  if not entry then return nil end
  return entry[1], entry[2]
end

---The file of a model.
---@return string|nil
function catalogue.file_of(name)
  local entry = entry_of(name)
  return entry and entry[3]
end

---Whether a model is from the user's own file.
function catalogue.is_own(name)
  local entry = entry_of(name)
  return entry ~= nil and entry.is_own == true
end

---All model names, aliases included, sorted.
function catalogue.names()
  load_all()
  return naming.sorted(by_name)
end

-- --- steps

local copied = { keys = rules.keys { { "*" } }, config = fields.config { { "*" } } }

---The generic steps: keys stay, the config file changes (modelzoo/run_config.lua).
local copy = rules.variant(copied, { generic = true })

---Lets a converter between two releases copy keys and fields if it has no rules for them.
---@param converter Converter   is changed in place
function catalogue.complete_step(converter)
  local is_step = not (catalogue.names_format(converter[1], "hf") or catalogue.names_format(converter[2], "hf"))
  if not is_step or converter.choose or converter.components or converter.wrap then return end
  converter.keys, converter.config = converter.keys or copied.keys, converter.config or copied.config
end

---@class Step
---@field converter Converter
---@field side Side      the side of the converter that is read
---@field src string
---@field tgt string

---The table between two formats, or nil.
---@param model Model
---@return Step|nil
function catalogue.direct(model, src, tgt)
  for _, converter in ipairs(model) do
    local left, right = converter[1], converter[2]
    if catalogue.names_format(left, src) and catalogue.names_format(right, tgt) then
      return { converter = converter, side = "left", src = src, tgt = tgt }
    elseif catalogue.names_format(right, src) and catalogue.names_format(left, tgt) then
      return { converter = converter, side = "right", src = src, tgt = tgt }
    end
  end
end

---The table between Hugging Face and the newest release that has one.
---@param model Model
---@param side Side   "left": from Hugging Face
---@return Step|nil
function catalogue.newest_step(model, side)
  for i = #releases.known, 1, -1 do
    local cs = "cs-" .. releases.known[i]
    local step = catalogue.direct(model, side == "left" and "hf" or cs, side == "left" and cs or "hf")
    if step then return step end
  end
end

---The table between Hugging Face and a release: its own, or that of the last release before it that has one.
---@param model Model
---@param side Side   "left": from Hugging Face
---@param release string
---@return Converter|nil
local function table_at(model, side, release)
  for i = releases.place[release], 1, -1 do
    local cs = "cs-" .. releases.known[i]
    local step = catalogue.direct(model, side == "left" and "hf" or cs, side == "left" and cs or "hf")
    if step then return step.converter end
  end
end

local function plain(format) return format == "hf" and format or "cs-" .. catalogue.release(format) end

---The model inside a wrapper, and its table between Hugging Face and the release of a format; an error if it has none.
---@param step Step
---@param config Dict
---@param side Side       of the config
---@param format string   of the wrapper
---@return string name, Model model, Converter converter
local function held(step, config, side, format)
  local wrapper = step.converter.wrap
  local name = wrap.model_in(wrapper, config, side)
  local model = catalogue.find(name)
  local converter = model and table_at(model, step.side, catalogue.release(format))
  if model and converter then return name, model, converter end
  return cbk.fail("config", ("%s=%s: the model inside has no format %s"):format(wrapper.says[side], name, format))
end

---The step between two releases of the model inside a wrapper.
---@param step Step
---@param config Dict
---@return Step
local function wrapped_release(step, config)
  local wrapper, src, tgt = step.converter.wrap, plain(step.src), plain(step.tgt)
  local _, model = held(step, config, "right", step.tgt)
  local inner = catalogue.direct(model, src, tgt)
  local converter = inner and wrap.between(wrapper, inner.converter) or copy
  return { converter = converter, side = inner and inner.side or step.side, src = step.src, tgt = step.tgt }
end

---The step of the model inside a wrapper, with the wrapper's rules added.
---@param step Step     of a converter with `wrap`
---@param config Dict   the model section of its side, which names the model inside
---@return Step
function catalogue.wrapped(step, config)
  if step.src ~= "hf" and step.tgt ~= "hf" then return wrapped_release(step, config) end
  local outer = step.converter
  local name, model, inner = held(step, config, step.side, step.side == "left" and step.tgt or step.src)
  -- The original converter runs the newest table of the model inside, which decides whether there is a name. MPT's is of 2.3.
  local newest = catalogue.release(catalogue.newest_step(model, "left").tgt)
  local converter = wrap.around(outer, inner, name, releases.since(newest, "2.4") and outer.named_from or nil)
  converter.classes = inner.classes or model.classes
  return { converter = converter, side = step.side, src = plain(step.src), tgt = plain(step.tgt) }
end

---The layouts of users' own converters, without Hugging Face's and the Model Zoo's.
---@return string[]   { "a", "b" }
function catalogue.own_layouts()
  local out, seen = {}, {}
  for _, name in ipairs(naming.sorted(by_name)) do
    for _, format in ipairs(by_name[name].is_own and catalogue.formats_of(by_name[name][1]) or {}) do
      if catalogue.is_own_layout(format) and not seen[format] then out[#out + 1], seen[format] = format, true end
    end
  end
  return out
end

---Whether a model has layouts of the user's own.
local function has_own_layouts(model)
  for _, converter in ipairs(model) do
    if catalogue.has_own_layout(converter) then return true end
  end
  return false
end

---The first table with a format, else with another release, and the side that has it.
---@param model Model
---@param format string
---@return Converter|nil, Side|nil
function catalogue.table_with(model, format)
  local release, other, other_side = catalogue.release(format), nil, nil
  for _, converter in ipairs(model) do
    for place, side in ipairs { "left", "right" } do
      if catalogue.names_format(converter[place], format) then return converter, side end
      local is_release = not other and release and catalogue.release(catalogue.formats(converter[place])[1])
      if is_release then other, other_side = converter, side end
    end
  end
  return other, other_side
end

---The class of a model in a format, by the table that has the format.
---@param format string
---@return Class|nil
local function class_by_table(model, format)
  local converter, side = catalogue.table_with(model, format)
  return converter and (converter.classes or {})[side]
end

---The classes of a model in the formats whose tensors are at the top level: Hugging Face's, and layouts of the user's own.
---@param model Model
---@return Class[]
function catalogue.classes_at_top(model)
  if model.classes and not has_own_layouts(model) then return { model.classes.left } end
  local out, seen = {}, {}
  for _, format in ipairs(catalogue.formats_of(model)) do
    local class = not catalogue.release(format) and class_by_table(model, format)
    if class and not seen[class] then out[#out + 1], seen[class] = class, true end
  end
  return out
end

---The class that describes a model in a format, or nil.
---@param model Model
---@param converter Converter   the table that is run; a part of a composite, and a model inside another, have classes of their own
---@param format string
---@return Class|nil class, string|nil release
function catalogue.class_of(model, converter, format)
  local classes = converter.classes or model.classes or {}
  local release, kind = catalogue.release(format), select(2, place_of(format))
  local found = classes[release and "right" or "left"]
  if converter[1] and converter.classes then
    found = classes[catalogue.names_format(converter[1], format) and "left" or "right"]
  elseif not (model.classes or converter.classes) or has_own_layouts(model) or catalogue.is_own_layout(format) then
    found = class_by_table(model, format)
  end
  if not release then return found end
  local is_there = found and (not found.since or found.before or releases.since(release, found.since))
  if is_there and (kind == "" or converter.inside) then return found, release end
end

---The Model Zoo class of a model: its own, or that of its first table with a release.
---@param model Model
---@return Class|nil
function catalogue.class_at_releases(model)
  if model.classes then return model.classes.right end
  for _, converter in ipairs(model) do
    if converter.classes and catalogue.release(catalogue.formats(converter[2])[1]) then return converter.classes.right end
  end
end

---The Model Zoo class of a model section; for a wrapper, the class of the inner model.
---@param model Model
---@param section Dict
---@return Class|nil
function catalogue.zoo_class(model, section)
  for _, converter in ipairs(model) do
    local inner = converter.wrap and catalogue.find(section[converter.wrap.says.right])
    if inner then return catalogue.zoo_class(inner, section) end
  end
  return catalogue.class_at_releases(model)
end

---The wrapper of a model's format; nil if it wraps nothing.
---@return Wrap|nil
local function wrapper_at(model, format)
  for _, converter in ipairs(model) do
    if converter.wrap and catalogue.names_format(converter[2], format) then return converter.wrap end
  end
end

---The step itself; or, if it only copies, the class's own step between the same releases.
---@param model Model
---@param step Step
---@param section Dict
---@return Step
function catalogue.step_of_class(model, step, section)
  local class = step.converter.generic and catalogue.zoo_class(model, section)
  for _, own in ipairs(class and class.steps or {}) do
    local older, newer = "cs-" .. catalogue.release(step.src), "cs-" .. catalogue.release(step.tgt)
    if step.side == "right" then older, newer = newer, older end
    if own[1] == older and own[2] == newer and own.applies(section) then
      local wrapper = wrapper_at(model, step.src)
      return { converter = wrapper and wrap.between(wrapper, own) or own, side = step.side, src = step.src, tgt = step.tgt }
    end
  end
  return step
end

---All formats of a model: every release since the oldest that its tables name, and all others that they name.
---@return string[] list, table<string, true> set
local function nodes_of(model)
  local named, oldest = catalogue.formats_of(model), nil
  for _, format in ipairs(named) do
    local place, kind = place_of(format)
    if kind == "" then oldest = math.min(oldest or place, place) end
  end
  local list, set = {}, {}
  local function add(format)
    if not set[format] then list[#list + 1], set[format] = format, true end
  end
  for place = oldest or math.huge, #releases.known do add("cs-" .. releases.known[place]) end
  for _, format in ipairs(named) do add(format) end
  return list, set
end

---A copying step between adjacent releases for which the model has no table. An inner model may have a table (catalogue.wrapped).
local function copying(model, src, tgt)
  local a, kind = place_of(src)
  local b, other_kind = place_of(tgt)
  if not a or kind ~= other_kind or math.abs(a - b) ~= 1 or math.min(a, b) < releases.place["1.8"] then return nil end
  local wrapper = wrapper_at(model, src)
  local converter = wrapper and rules.variant(copy, { wrap = wrapper }) or copy
  return { converter = converter, side = a < b and "left" or "right", src = src, tgt = tgt }
end

---Whether no release lies between two formats.
---@return boolean|nil
function catalogue.is_step(src, tgt)
  local from, to = (place_of(src)), (place_of(tgt))
  local function has_no_place(format) return format == "hf" or catalogue.is_own_layout(format) end
  return has_no_place(src) or has_no_place(tgt) or (from and to and math.abs(from - to) <= 1)
end

---The shortest paths from a format to all others; no step skips a release. Hugging Face's files and layouts of the user's own hold only
---the model, so no path goes through them.
---@return table<string, Step> step_to   the last step of each path
local function ways(model, src)
  local nodes, has = nodes_of(model)
  local step_to, queue = {}, has[src] and { src } or {}
  for _, at in ipairs(queue) do
    for _, tgt in ipairs((at == src or catalogue.release(at)) and nodes or {}) do
      local is_new = tgt ~= src and not step_to[tgt] and catalogue.is_step(at, tgt)
      local step = is_new and (catalogue.direct(model, at, tgt) or copying(model, at, tgt))
      if step then step_to[tgt], queue[#queue + 1] = step, tgt end
    end
  end
  return step_to
end

---@class Path   The steps of a conversion.
---@field [integer] Step
---@field at_once? boolean   a table converts directly between both ends: it counts as one conversion

---The steps from one format to another, or nil. They go release by release, to or from the nearest one with a table for the other end.
---@param model Model
---@return Path|nil
function catalogue.path(model, src, tgt)
  if src == tgt then return nil end
  local step_to, path = ways(model, src), {}
  local at = tgt
  while at ~= src do
    local step = step_to[at]
    if not step then return nil end
    table.insert(path, 1, step)
    at = step.src
  end
  path.at_once = #path > 1 and catalogue.direct(model, src, tgt) ~= nil
  return path
end

---The single copying step if source and target are two names of one format.
---@param model Model
---@param format string   of a release
---@return Path|nil
function catalogue.stay(model, format)
  local _, has = nodes_of(model)
  if not has[format] or format == "hf" then return nil end
  return { { converter = copy, side = "left", src = format, tgt = format } }
end

---Groups of formats that convert into each other, without Hugging Face's. Each group is sorted by kind and release.
---@param model Model
---@return string[][]
function catalogue.groups(model)
  local out, seen, nodes = {}, { hf = true }, nodes_of(model)
  for _, src in ipairs(nodes) do
    if not seen[src] then
      local group, reached = {}, ways(model, src)
      for _, format in ipairs(nodes) do
        if format == src or format ~= "hf" and reached[format] then group[#group + 1], seen[format] = format, true end
      end
      if #group > 1 then out[#out + 1] = group end
    end
  end
  return out
end

return catalogue
