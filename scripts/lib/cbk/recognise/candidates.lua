-- The models that a checkpoint may be of: by its config, or without one by its names alone.

local cbk = require "cbk"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local guess = require "cbk.recognise.guess"
local warnings = require "cbk.warnings"
local architectures = require "cbk.recognise.architectures"
local fields = require "converters.engine.fields"
local fit = require "converters.engine.fit"
local kinds = require "converters.engine.kinds"
local own_config = require "converters.conversion.own_config"
local sections = require "converters.engine.sections"

local catalogue = converters.catalogue
local candidates = {}

---Every model of the catalogue once, with its class on a side.
---@param side Side
---@return { model: Model, class: Class }[]
function candidates.described(side)
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    local class = model.model == name
      and (side == "left" and catalogue.classes_at_top(model)[1] or side == "right" and catalogue.class_at_releases(model))
    if class then out[#out + 1] = { model = model, class = class } end
  end
  return out
end

---Whether a model lacks the head of Hugging Face's class, as its name says.
---@param name string
---@return boolean
local function is_headless(name) return name:find "%-headless$" ~= nil end

---@class Candidate
---@field model Model
---@field class Class
---@field fit? Fit              only for the first of a list; nil: there is no config
---@field tensors? fun(): ClassTensors   the class's tensors for the config
---@field matched? integer    keys that the class has
---@field mistakes integer
---@field is_named boolean    a config of Hugging Face names its class
---@field body? Candidate        the headless model that the tensors are of, though the config names the class with a head
---@field changes integer      fields that have another value than the class's, where the names alone tell the config
---@field wrong integer        fields of the config that its table refuses, or that are another class's
---@field lacking? integer      fields of its table that the config lacks; nil: it has no table to Hugging Face

---How many weights a class needs, tied ones once.
---@param known ClassTensors
local function count_needed(known)
  local count = 0
  for _, one in ipairs(known) do
    if not (one.buffer or one.optional or one.part or one.tied_to) then count = count + 1 end
  end
  return count
end

---Removes headless models of which a config names the class with a head: then the head is missing. Where the head is tied to the
---embeddings, or is no weight at all, the body is the whole model.
---@param list Candidate[]
---@return Candidate[]
local function without_denied(list)
  local named, out = {}, {}
  for _, one in ipairs(list) do
    if one.is_named and one.tensors then named[one.model.model] = one end
  end
  for _, one in ipairs(list) do
    local with_head = is_headless(one.model.model) and not one.is_named and named[(one.model.model:gsub("%-headless$", ""))]
    local is_body = with_head and with_head.matched < one.matched
    if is_body and count_needed(with_head.tensors()) > count_needed(one.tensors()) then with_head.body = one end
    if not with_head or is_body and with_head.body ~= one then out[#out + 1] = one end
  end
  return out
end

---Whether a class is named after the model, as GPT2LMHeadModel is after gpt2. Other models of the class are variants.
---@param one Candidate
---@return boolean
local function is_of_own_class(one)
  return one.class.name:lower():find(one.model.model:gsub("%W", ""), 1, true) ~= nil
end

local MOST_FIELDS = 1000 -- of a table

---The candidates, those that fit best first. Of equals, the plainest first: fewest config fields, then the class's own.
---@param list Candidate[]
---@return Candidate[]
function candidates.ranked(list)
  list = without_denied(list)
  table.sort(list, function(one, other)
    if one.mistakes ~= other.mistakes then return one.mistakes < other.mistakes end
    if one.is_named ~= other.is_named then return one.is_named end
    if one.changes ~= other.changes then return one.changes < other.changes end
    if one.wrong ~= other.wrong then return one.wrong < other.wrong end
    local few, more = one.lacking or MOST_FIELDS, other.lacking or MOST_FIELDS
    if few ~= more then return few < more end
    local a, b = one.model.model, other.model.model
    if is_headless(a) ~= is_headless(b) then return is_headless(b) end
    local plain, richer = #one.class.field_names, #other.class.field_names
    if plain ~= richer then return plain < richer end
    if is_of_own_class(one) ~= is_of_own_class(other) then return is_of_own_class(one) end
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  return list
end

---Whether a config is as far from one candidate as from another, as far as their tables tell.
local function are_as_near(one, other)
  return one.wrong == other.wrong and (one.lacking == other.lacking or one.lacking == nil or other.lacking == nil)
end

---Whether a model is as likely as the best one.
---@param one Candidate
---@param best Candidate
---@param has_config boolean   without one, all models with these names are
function candidates.is_tie(one, best, has_config)
  return one.mistakes == best.mistakes and one.is_named == best.is_named and (not has_config or are_as_near(one, best))
    and not is_headless(one.model.model)
end

---@class Asked
---@field side Side
---@field section Dict           the model's config
---@field architecture? string   the class that a Hugging Face config names
---@field accepts fun(one: { model: Model, class: Class }): boolean
---@field distance fun(one: { model: Model, class: Class }): integer, integer|nil   `wrong` and `lacking` of a candidate

local MANY_TENSORS = 20000

---@param asked Asked
---@param one { model: Model, class: Class }
---@param format string
---@return Candidate|nil   without its fit; nil: the model has no class in this format
local function new_candidate(asked, one, format)
  local class, of = catalogue.class_of(one.model, {}, format)
  if not class then return nil end
  local wrong, lacking = asked.distance(one)
  local function tensors() return class:tensors(own_config.complete(one.model, format, asked.section), { release = of }) end
  return { model = one.model, class = class, tensors = tensors,
    is_named = architectures.is_of(one.model, asked.architecture), changes = 0, wrong = wrong, lacking = lacking }
end

---@class UnfitConfig   Why the config does not fit a model that it names.
---@field text string    "for llama, the config has …"
---@field cause any      the error

---@param one Candidate
---@param problem any   an error
---@return UnfitConfig
local function why_not(one, problem)
  local is_value = type(problem) == "table" and problem.supported
  local said = is_value and errors.with(problem, { problem = ("the config has %s=%s"):format(problem.field, problem.found) }) or problem
  return { text = ("for %s, %s"):format(one.model.model, errors.text(said)), cause = problem }
end

---The models that a search accepts, those of the class that the config names first.
---@param asked Asked
---@return { model: Model, class: Class }[] list
---@return integer named   how many are of that class
local function accepted(asked)
  local named, out = {}, {}
  for _, one in ipairs(candidates.described(asked.side)) do
    local list = architectures.is_of(one.model, asked.architecture) and named or out
    if asked.accepts(one) then list[#list + 1] = one end
  end
  for _, one in ipairs(out) do named[#named + 1] = one end
  return named, #named - #out
end

---Keeps the fit of a candidate. Those with many tensors are not kept, as a tiny config may ask for 100,000 tensors of each model, except
---for the best one of a checkpoint that has about as many itself.
---@param one Candidate
---@param best Candidate|nil   the best one whose fit has many tensors
---@param count integer        of the checkpoint's keys
---@return Candidate|nil best
local function keep_fit(one, found, best, count)
  if #found.known <= MANY_TENSORS then
    one.fit = found
  elseif #found.known <= 2 * count and (not best or one.mistakes < best.mistakes) then
    if best then best.fit = nil end
    one.fit, best = found, one
  end
  if not one.fit then collectgarbage() end
  return best
end

---The models that a config may mean. Where one of the class that the config names fits, no other class is tried.
---@param asked Asked
---@param format string
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil
---@return Candidate[]
---@return UnfitConfig[] problems
function candidates.at(asked, format, keys, shape_of)
  local out, problems, is_found, best = {}, {}, false, nil
  local list, named = accepted(asked)
  for i, described in ipairs(list) do
    if is_found and i > named then break end
    local one = new_candidate(asked, described, format)
    local fine, found = pcall(function() return one and fit.of(one.tensors(), keys, shape_of) end)
    if one and fine then
      out[#out + 1], one.matched, one.mistakes = one, found.matched, fit.mistakes(found)
      is_found = is_found or one.is_named and one.mistakes == 0
      best = keep_fit(one, found, best, #keys)
    elseif one then
      problems[#problems + 1] = why_not(one, found)
    end
  end
  list = candidates.ranked(out)
  if list[1] and not list[1].fit then list[1].fit = fit.of(list[1].tensors(), keys, shape_of) end
  return list, problems
end

---The candidates of the first format that fits best.
---@param formats string[]
---@return Candidate[], UnfitConfig[] problems   as of `candidates.at`
---@return string format
---@return string[] alike   layouts of the user's own that the same model fits as well
function candidates.of_config(asked, formats, keys, shape_of)
  local list, problems, nearest, alike = {}, {}, formats[1], {}
  for _, format in ipairs(formats) do
    local is_found = list[1] and list[1].mistakes == 0
    if is_found and not catalogue.is_own_layout(format) then break end
    local own, own_problems = candidates.at(asked, format, keys, shape_of)
    local is_alike = own[1] and list[1] and own[1].mistakes == list[1].mistakes and own[1].model == list[1].model
    if is_alike and catalogue.is_own_layout(format) then alike[#alike + 1] = format end
    if own[1] and (not list[1] or own[1].mistakes < list[1].mistakes) then list, nearest, alike = own, format, {} end
    if #problems == 0 then problems = own_problems end
  end
  return list, problems, nearest, alike
end

-- earlier model_types of models
local old_types = { RefinedWeb = "falcon", RefinedWebModel = "falcon" }

---@param config Dict
---@return fun(one: { model: Model, class: Class }): boolean
function candidates.of_type(config)
  local stated, class = config.model_type, architectures.stated(config)
  if type(stated) ~= "string" then return function() return true end end
  return function(one)
    local types = converters.hugging_face_types(one.model)
    local says_none = next(types) == nil -- the user's own may have none
    return types[old_types[stated] or stated] == true or says_none and (one.model.model == stated or architectures.is_of(one.model, class))
  end
end

---The other layout of the user's table with a layout.
---@param model Model
---@param layout string
---@return Path|nil path, string|nil target
local function way_from_own(model, layout)
  local converter, side = catalogue.table_with(model, layout)
  if not converter then return nil end
  local target = catalogue.formats(converter[side == "left" and 2 or 1])[1]
  return { { converter = converter, side = side, src = layout, tgt = target } }, target
end

---The path by which a checkpoint can be converted: to Hugging Face, or to the newest release; from a layout of the user's own, to the
---other one of its table.
---@param model Model
---@param format string
---@return Path|nil path, string|nil target
function candidates.way_from(model, format)
  if catalogue.is_own_layout(format) then return way_from_own(model, format) end
  for _, target in ipairs(format == "hf" and { "cs-current" } or { "hf", "cs-current" }) do
    local path = catalogue.path(model, catalogue.resolve(format, model), catalogue.resolve(target, model))
    if path then return path, target end
  end
end

---Whether a model's table to Hugging Face accepts this config. Without a table of the same release, the nearest one is used.
---@param path Path
---@param section Dict
---@param counts? fun(field: string): boolean   whether a field counts; default: all do
local function takes(path, section, counts)
  local step = path[#path]
  for _, converter in pairs(step.tgt == "hf" and (step.converter.variants or { step.converter }) or {}) do
    local fine, refused = warnings.quietly(sections.refused, converter, step.side, section)
    local is_refused = not fine
    for _, one in ipairs(fine and refused or {}) do is_refused = is_refused or not counts or counts(one.field) end
    if not is_refused then return true end
  end
  return step.tgt ~= "hf"
end

---The fields of a Model Zoo config that are those of other classes only.
---@param section Dict
---@return fun(class: Class): string[]
function candidates.foreign_fields(section)
  local anywhere = {}
  for _, one in ipairs(candidates.described "right") do
    for name in pairs(one.class:by_name()) do anywhere[name] = true end
  end
  return function(class)
    local known, out = class:by_name(), {}
    for name, value in cbk.items(section) do
      if anywhere[name] and not known[name] and kinds.present(value) then out[#out + 1] = name end
    end
    return out
  end
end

---@return fun(class: Class): integer
local function count_foreign_fields(section)
  local foreign_of = candidates.foreign_fields(section)
  return function(class) return #foreign_of(class) end
end

---How far a config is from a model's table to Hugging Face.
---@param model Model
---@param formats string[]   the Model Zoo formats that the config may have
---@param section Dict
---@return integer refused       fields
---@return integer|nil lacking   fields of the table that the config lacks; nil: there is no table
local function distance_from_table(model, formats, section)
  for _, format in ipairs(formats) do
    local path = candidates.way_from(model, format)
    local step = path and path[#path]
    if step and step.tgt == "hf" then
      local refused, lacking = math.huge, math.huge
      for _, converter in pairs(step.converter.variants or { step.converter }) do
        local own_refused, own_lacking = sections.distance(converter, step.side, section)
        if own_refused < refused or own_refused == refused and own_lacking < lacking then
          refused, lacking = own_refused, own_lacking
        end
      end
      return refused, lacking
    end
  end
  return 0, nil
end

---How far a config is from each model. For Hugging Face configs it is 0.
---@param formats string[]   the Model Zoo formats that the config may have; none: it is one of Hugging Face
---@param section Dict
---@return fun(one: { model: Model, class: Class }): integer, integer|nil   `wrong` and `lacking` of a candidate
function candidates.distance_of(formats, section)
  if #formats == 0 then return function() return 0, 0 end end
  local count_foreign = count_foreign_fields(section)
  return function(one)
    local refused, lacking = distance_from_table(one.model, formats, section)
    return refused + count_foreign(one.class), lacking
  end
end

---The models that a config of the Model Zoo may mean: those of its name. Without a name, those whose table to Hugging Face takes it, and
---those of classes that no table takes it for, if they have as many of its fields.
---@param formats string[]   the Model Zoo formats that the config may have
---@param section Dict
---@return fun(one: { model: Model, class: Class }): boolean
function candidates.of_name(formats, section)
  local stated = section.name
  if type(stated) == "string" then
    return function(one)
      local name = one.model.name or one.model.model
      return name == stated or one.model.model == stated or (one.model.aliases or {})[stated] ~= nil
    end
  end
  local is_read, is_taken, count_foreign = {}, {}, count_foreign_fields(section) -- by tables, which many releases share; by classes
  local function is_read_by(model)
    for _, format in ipairs(formats) do
      local path = candidates.way_from(model, format)
      local converter = path and path[#path].converter
      if converter and is_read[converter] == nil then is_read[converter] = takes(path, section) end
      if converter and is_read[converter] then return true end
    end
    return false
  end
  local least = math.huge
  for _, one in ipairs(candidates.described "right") do is_taken[one.class] = is_taken[one.class] or is_read_by(one.model) end
  for class, taken in pairs(is_taken) do least = taken and math.min(least, count_foreign(class)) or least end
  return function(one)
    if is_taken[one.class] then return is_read_by(one.model) end
    return count_foreign(one.class) <= least
  end
end

---The models that a config may mean. If it names a Hugging Face class, only those of that class, maybe none.
---@param asked Asked
---@return { model: Model, class: Class }[]
local function meant_by(asked)
  local all, named = {}, {}
  for _, one in ipairs(candidates.described(asked.side)) do
    local list = asked.accepts(one) and all
    if list then list[#list + 1] = one end
    if list and architectures.is_of(one.model, asked.architecture) then named[#named + 1] = one end
  end
  local is_foreign = asked.architecture ~= nil and asked.side == "left" and #named == 0
  return is_foreign and {} or #named > 0 and named or all
end

---Counts mismatches of names, by the nearest of the models that a config may mean.
---@param asked Asked
---@param formats string[]
---@return ContentsFit
function candidates.fit_of_config(asked, formats)
  local models
  return function(keys)
    models = models or meant_by(asked)
    local least
    for _, format in ipairs(formats) do
      for _, one in ipairs(models) do
        local class, of = catalogue.class_of(one.model, {}, format)
        local mistakes = class and guess.mistakes(class, asked.section, of, keys)
        if mistakes and (not least or mistakes < least) then least = mistakes end
      end
    end
    return least
  end
end

---Counts mismatches of names, by the nearest of all models that have these names, without a config.
---@param formats string[]
---@return ContentsFit
function candidates.fit_of_names(formats)
  return function(keys, shape_of)
    local best = candidates.of_names(formats, keys, shape_of)[1]
    return best and best.mistakes or nil
  end
end

-- --- without a config

---The first of the guessed configs that a model's table accepts.
---@param path Path
---@param found Guess
---@return Dict|nil
local function config_taken(path, found)
  for _, config in ipairs(found.configs) do
    if takes(path, config, found.is_told) then return config end
  end
end

---The number of fields in a guessed config with another value than the class's default.
---@param class Class
---@param config Dict
local function changes_in(class, config)
  local count = 0
  for name, value in cbk.items(config) do
    if not fields.same(value, class.fields[name].default) then count = count + 1 end
  end
  return count
end

---The models with all of these names, the most likely ones first, in the first format that has such a model.
---@param formats string[]
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil
---@param architecture? string   the Hugging Face class that the checkpoint keeps
---@return Candidate[], string format
function candidates.of_names(formats, keys, shape_of, architecture)
  local guess_of = guess.of(keys, shape_of)
  for _, format in ipairs(formats) do
    local out = {}
    local is_zoo = catalogue.release(format) ~= nil
    for _, one in ipairs(candidates.described(is_zoo and "right" or "left")) do
      local class, release = catalogue.class_of(one.model, {}, format)
      local found = class and guess_of(class, release)
      local path = found and found.unknown == 0 and candidates.way_from(one.model, format)
      local config = path and (is_zoo and config_taken(path, found) or not is_zoo and found.config)
      if config then -- in a part of a model, the number of missing names means nothing
        local refused, lacking = distance_from_table(one.model, is_zoo and { format } or {}, config)
        out[#out + 1] = { model = one.model, class = class, mistakes = (found.missing > 0 and 1 or 0) + found.odd + found.spare,
          is_named = architectures.is_of(one.model, architecture), changes = changes_in(class, config), wrong = refused, lacking = lacking }
      end
    end
    if #out > 0 then return candidates.ranked(out), format end
  end
  return {}, formats[1]
end

return candidates
