-- The histories of config fields: refuses values that a release does not have yet.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local releases = require "converters.engine.releases"

local history = {}

---@class FieldHistory   The history of one field. Null counts as absent.
---@field [1] string  the release that added it
---@field [2] any     the value of older models: a value, fields.any_of, or a function (value, section) that tests a value
---@field says? string    that value in words, for a function
---@field meant? string   in place of a value: what the field means in older releases, which know it: "a window is one token longer"
---@field warn? boolean|"steps"   a warning in place of an error, as in the original converter; "steps": between releases only

---@alias History table<string, FieldHistory|FieldHistory[]|History>   fields (several, where a later release knew more values: the newest
---first), and sections with fields of their own

local function is_expressible(entry, value, section)
  if kinds.absent(value) then return true end
  if type(entry[2]) == "function" then return entry[2](value, section) end
  return fields.same(value, entry[2])
end

---@class HistoryWay   The formats between which a model section is converted.
---@field to string          the target release
---@field from? string       the source release: fields that it does not know either are kept; nil: Hugging Face
---@field starts_at_hf boolean   the whole conversion, not only this step, starts with Hugging Face's files
---@field named? table<string, string>   Hugging Face's names of fields, if the step starts with its config
---@field given? Dict        that config

---The name and value of a field in the user's config. The values that a release knows are those of the Model Zoo's field, so Hugging
---Face's name is used only for a field that must be absent.
---@return string name, any value
local function as_given(entry, name, value, way)
  local own = way.named and way.named[name]
  if own and fields.same(entry[2], cbk.null) then return own, way.given[own] end
  return name, value
end

---Refuses, or warns about, a field's value that the release does not know.
---@param entry FieldHistory
---@param way HistoryWay
---@return boolean|nil is_reported
local function check_field(entry, name, section, way)
  local came, value = entry[1], section[name]
  local is_known = releases.since(way.to, came) or way.from and not releases.since(way.from, came)
  if is_known or is_expressible(entry, value, section) then return end
  local usual = (entry.says or fields.shown(entry[2])):gsub(",$", "")
  if not entry.warn or entry.warn == "steps" and way.starts_at_hf then
    local own, given = as_given(entry, name, value, way)
    local advice = ("to keep it, convert to cs-%s or a later release"):format(came)
    fields.refuse(own, given, ("%s, before release %s,"):format(usual, came), advice)
  end
  cbk.warn(("%s=%s is kept, but the model of release %s computes something else: before release %s it supports only %s"):format(
    name, fields.shown(value), way.to, came, usual))
  return true
end

---Calls `visit` with the entries of each field that the section has, the newest first.
---@param known History|nil
---@param section Dict
---@param visit fun(entries: FieldHistory[], name: string, section: Dict)
local function each_field(known, section, visit)
  for _, name in ipairs(known and cbk.keys(section) or {}) do
    local entry = known[name]
    if entry and entry[1] then
      visit(type(entry[1]) == "table" and entry or { entry }, name, section)
    elseif entry and kinds.is_dict(section, name) then
      each_field(entry, section[name], visit)
    end
  end
end

---Refuses, or warns about, fields of a model section that the release does not have.
---@param known History|nil
---@param section Dict
---@param way HistoryWay
function history.check(known, section, way)
  each_field(known, section, function(entries, name, of)
    for _, one in ipairs(entries) do
      if not one.meant and check_field(one, name, of, way) then return end
    end
  end)
end

---Warns about fields whose values mean one thing on one side and another on the other. Hugging Face's mean what they mean in the newest
---release.
---@param known History|nil
---@param section Dict   the Model Zoo's
---@param from string|nil   the release; nil: Hugging Face
---@param to string|nil
function history.warn_of_meanings(known, section, from, to)
  local older, newer = from, to
  if not from or to and releases.since(from, to) then older, newer = to, from end
  each_field(known, section, function(entries, name, of)
    for i = older and not kinds.absent(of[name]) and #entries or 0, 1, -1 do
      local one = entries[i]
      local is_between = not releases.since(older, one[1]) and (not newer or releases.since(newer, one[1]))
      if one.meant and is_between then
        cbk.warn(("%s=%s is kept, but release %s and %s compute different things with it: before release %s %s"):format(name,
          fields.shown(of[name]), older, newer and "release " .. newer or "Hugging Face's model", one[1], one.meant))
        return
      end
    end
  end)
end

return history
