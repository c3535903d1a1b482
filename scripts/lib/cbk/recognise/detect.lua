-- Detects the release of a checkpoint and its config: from the evidence in them (release.lua), then from the names that the model's class
-- has in each remaining release. If several releases remain, the result must be the same for all of them.

local cbk = require "cbk"
local checkpoint = require "converters.modelzoo.checkpoint"
local converters = require "cbk.converters"
local guess = require "cbk.recognise.guess"
local names = require "cbk.recognise.names"
local patterns = require "converters.engine.patterns"
local release = require "cbk.recognise.release"
local warnings = require "cbk.warnings"

local detect = {}
local catalogue = converters.catalogue

---"1.8", "1.8 or 1.9", "2.5 to 2.9"
---@param list string[]
function detect.listed(list)
  if #list > 2 then return list[1] .. " to " .. list[#list] end
  return table.concat(list, " or ")
end

---The end of a message: the evidence found, and how to choose a release.
---@param evidence Evidence[]
---@param advice string
function detect.reasons(evidence, advice)
  local lines = release.lines(evidence)
  return (" (%s); %s"):format(#lines > 0 and table.concat(lines, "; ") or "there is no evidence of its release", advice)
end

-- --- the releases that have these names

---How many kinds of names the model lacks in a release; nil if no class describes it.
---@param model Model
---@param from string
---@param files DetectedFiles
---@param keys string[]   one of each kind
---@return integer|nil
local function unknown_names(model, from, files, keys)
  local of = names.of(model, catalogue.format_at(model, from), files.config)
  local count = of and 0 or nil
  for _, key in ipairs(of and keys or {}) do
    if not names.has(of, key) then count = count + 1 end
  end
  return count
end

---The releases with the fewest unknown names.
---@param model Model
---@param list string[]
---@param files DetectedFiles
---@param keys string[]   one of each kind
---@return string[] releases, integer unknown
local function nearest(model, list, files, keys)
  local out, least = {}, math.huge
  for _, from in ipairs(list) do
    local count = unknown_names(model, from, files, keys) or 0
    if count < least then out, least = {}, count end
    if count == least then out[#out + 1] = from end
  end
  return out, least
end

-- --- whether the releases differ for this checkpoint

---The rule that a converter has for a key, except a rule for all keys; and rules that may apply instead of it.
---@param converter Converter
---@param side Side
---@param key string
---@return table[]
local function hits_of(converter, side, key)
  local out = {}
  for _, hit in ipairs(patterns.match((patterns.compile(converter.keys, side)), key)) do
    if not hit.ending.pattern:find "%*$" then out[#out + 1] = hit end
  end
  return out
end

---Whether two tables treat a key alike.
---@param a Step
---@param b Step
---@param key string
local function are_same_rules(a, b, key)
  local one, other = hits_of(a.converter, a.side, key), hits_of(b.converter, b.side, key)
  if #one ~= #other then return false end
  for i, hit in ipairs(one) do
    local own, far = hit.ending, other[i].ending
    -- If values are computed, the user must name the release: a wrong one would give wrong weights.
    local is_same = own.kind == far.kind and not own.rule.action and not far.rule.action and own.rule.when == far.rule.when
      and #own.to == #far.to
    for k = 1, is_same and #own.to or 0 do
      is_same = is_same and patterns.render(own.to[k], hit.caught) == patterns.render(far.to[k], other[i].caught)
    end
    if not is_same then return false end
  end
  return true
end

---The steps of a path that are not also at the end of another path.
---@param path Path
---@param other Path
---@return Step[]
local function own_steps(path, other)
  local shared = 0
  while shared < #path and shared < #other and path[#path - shared].converter == other[#other - shared].converter
    and path[#path - shared].src == other[#other - shared].src do
    shared = shared + 1
  end
  return { unpack(path, 1, #path - shared) }
end

---Whether two paths treat all keys alike.
---@param keys string[]
local function are_same_ways(a, b, keys)
  local own, far = own_steps(a, b), own_steps(b, a)
  local is_table = #own == 1 and #far == 1
  for _, key in ipairs(keys) do
    if is_table and not are_same_rules(own[1], far[1], key) then return false end
    for _, list in ipairs(is_table and {} or { own, far }) do
      for _, step in ipairs(list) do
        local has_rules = step.converter.keys and not (step.converter.wrap or step.converter.choose)
        if not has_rules or #hits_of(step.converter, step.side, key) > 0 then return false end
      end
    end
  end
  return true
end

---Converts the config as from one release. Other changes of the checkpoint than in its keys are not checked.
---@return string|nil text, any problem
local function config_text(model_name, from, target, config)
  local model = catalogue.find(model_name)
  local fine, result = warnings.quietly(function()
    local job = converters.job(converters.route(model_name, catalogue.format_at(model, from), target))
    return cbk.json(converters.convert.config(job, config))
  end)
  return fine and result or nil, not fine and result or nil
end

---@class DetectedFiles
---@field root Dict     of the checkpoint
---@field config Dict   the whole file
---@field paths { checkpoint: string, config: string|nil }

---The releases that the config may be of, each with the converted config. Fails if there are none.
---@param model Model
---@param list string[]
---@param target string   a format
---@param files DetectedFiles
---@return string[] releases, table<string, string> texts
local function of_config(model, list, target, files)
  local out, texts, first = {}, {}, nil
  for _, from in ipairs(list) do
    local is_target = catalogue.format_at(model, from) == target -- no conversion is needed
    local text, problem = is_target and "" or nil, nil
    if not is_target then text, problem = config_text(model.model, from, target, files.config) end
    first = first or problem
    if text then out[#out + 1], texts[from] = from, text end
  end
  if #out == 0 then error(first, 0) end
  return out, texts
end

---Whether files of these releases are converted to the same result.
---@param model Model
---@param list string[]
---@param texts table<string, string>   the converted configs
---@param target string   a format
---@param files DetectedFiles
---@param keys string[]   one of each kind
local function are_alike(model, list, texts, target, files, keys)
  local first
  for _, from in ipairs(list) do
    local format = catalogue.format_at(model, from)
    local path = format ~= target and catalogue.path(model, format, target)
    if not path then return false end
    if first and (texts[from] ~= texts[list[1]] or not are_same_ways(first, path, keys)) then return false end
    first = first or path
  end
  local has_state = target ~= "hf" and cbk.count(files.root) > (files.root.__metadata__ ~= nil and 2 or 1)
  return not has_state or checkpoint.is_same_state(list[1], list[#list])
end

---The oldest possible release, if all give the same result; else an error that shows the evidence.
---@param evidence Evidence[]   evidence from names of weights is added if they decided
---@param model_name string
---@param target string         the format wanted
---@param files DetectedFiles
---@param advice string         how to name the release
---@return string release
function detect.release(evidence, model_name, target, files, advice)
  local model, possible = catalogue.find(model_name), release.candidates(evidence)
  local function refuse(message) cbk.fail("format", message .. detect.reasons(evidence, advice)) end
  if #possible == 0 then
    local problem, what_to_do = release.contradiction(evidence, files.paths)
    cbk.fail("format", problem, { advice = what_to_do })
  end
  local function with_way(list)
    local out = {}
    for _, one in ipairs(list) do
      local format = model and catalogue.format_at(model, one)
      if not model or format == target or catalogue.path(model, format, target) then out[#out + 1] = one end
    end
    return out
  end
  local known, keys = with_way(possible), {}
  if #known == 0 then known = with_way(release.candidates(evidence, true)) end -- the model's formats outweigh habits
  if #known == 0 then
    refuse(("the files are of release %s, and %s cannot be converted from there to %s"):format(detect.listed(possible), model_name,
      target))
  elseif #known == 1 or not model then
    return known[1]
  end
  for _, key in pairs(guess.outlines(names.keys_of(files.root))) do keys[#keys + 1] = key end
  table.sort(keys)
  local left, unknown = nearest(model, known, files, keys)
  if unknown * 2 > #keys then
    cbk.fail("convert", ("the files fit none of the possible releases (%s): %d of %d kinds of weight names are unknown in %s, such as %s")
      :format(detect.listed(known), unknown, #keys, model_name, names.shown(keys)))
  end
  local texts = {}
  if #left > 1 then left, texts = of_config(model, left, target, files) end
  if #left > 1 and not are_alike(model, left, texts, target, files, keys) then
    refuse(("the files may be of release %s, which may give different results"):format(detect.listed(left)))
  end
  if #left < #known then evidence[#evidence + 1] = { what = "names of weights", from = left[1], to = left[#left] } end
  return left[1]
end

return detect
