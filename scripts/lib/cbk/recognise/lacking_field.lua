-- Errors about a field that a config lacks: with the file, the model that needs the field, and the model that the config fits.

local cbk = require "cbk"
local candidates = require "cbk.recognise.candidates"
local catalogue = require "converters.engine.catalogue"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local recognise = require "cbk.recognise"
local trainer = require "converters.modelzoo.trainer"
local warnings = require "cbk.warnings"

local lacking_field = {}

---@class ConvertedConfig
---@field path string|nil     nil: it is in the checkpoint
---@field config Dict|nil
---@field model string        as the user named it
---@field src string          a format
---@field tgt string
---@field checkpoint? Checkpoint   with it
---@field checkpoint_path? string

---The models that the config, or the checkpoint with it, seems to be of.
---@param about ConvertedConfig
---@return string[]
local function models_of(about)
  if about.checkpoint then
    local found = recognise.checkpoint(about.checkpoint_path, about.checkpoint, { config = about.path, format = about.src })
    return { found.model, unpack(found.others) }
  end
  local is_zoo, found = catalogue.release(about.src) ~= nil, {}
  local section = is_zoo and trainer.model(about.config) or about.config
  local formats = is_zoo and { about.src } or {}
  local accepts = is_zoo and candidates.of_name(formats, section) or candidates.of_type(about.config)
  local distance_of = candidates.distance_of(formats, section)
  for _, one in ipairs(candidates.described(is_zoo and "right" or "left")) do
    if accepts(one) then
      local wrong, lacking = distance_of(one)
      found[#found + 1] = { model = one.model, class = one.class, mistakes = 0, is_named = false, changes = 0, wrong = wrong,
        lacking = lacking }
    end
  end
  local list, out = candidates.ranked(found), {}
  for i, one in ipairs(list) do
    if i == 1 or candidates.is_tie(one, list[1], true) then out[#out + 1] = one.model.model end
  end
  return out
end

---Whether a model's table converts the config.
---@param about ConvertedConfig
local function converts(model, about)
  return (warnings.quietly(function()
    local src = catalogue.resolve(about.src, catalogue.find(model))
    converters.convert.config(converters.job(converters.route(model, src, about.tgt)), about.config)
  end))
end

---Advice that names other models, of which the config has all fields; nil if there are none.
---@param about ConvertedConfig
---@return string|nil
local function other_models(about)
  local fine, found = warnings.quietly(function() return models_of(about) end)
  local out = {}
  for _, name in ipairs(fine and found or {}) do
    if catalogue.find(name) ~= catalogue.find(about.model) and converts(name, about) then out[#out + 1] = name end
  end
  return #out > 0 and "its fields fit --model " .. table.concat(out, " or ") or nil
end

---@param problem any    as returned by pcall
---@param about ConvertedConfig
---@return any
function lacking_field.explained(problem, about)
  local is_lack = type(problem) == "table" and problem.code == "config" and problem.found == "nothing"
  if not (is_lack and about.path and kinds.is_dict(about.config)) then return problem end
  local place = catalogue.release(about.src) and trainer.place_of_model(about.config) .. "." or ""
  local names = {}
  for i, field in ipairs(problem.fields or { problem.field }) do
    names[i] = place .. field
    if cbk.find(about.config, names[i]) ~= nil then return problem end -- a step on the way lost it
  end
  return errors.with(problem, {
    problem = ("%s lacks %s, which %s needs"):format(cbk.quote(about.path), table.concat(names, ", "), about.model), context = {},
    advice = problem.advice or other_models(about) or #names == 1 and "add it" or "add them",
  })
end

---Calls `f`, and explains its errors.
---@param about ConvertedConfig
---@param f function
---@return any ...
function lacking_field.within(about, f, ...)
  local results = { pcall(f, ...) }
  if not results[1] then error(lacking_field.explained(results[2], about), 0) end
  return unpack(results, 2, table.maxn(results))
end

return lacking_field
