-- Normalizers of a tokenizer.json: what happens to a text before it is split.

local cbk = require "cbk"
local known = require "cbk.tokens.known"
local unicode = require "cbk.tokens.unicode"

local normalizers = {}

---@alias Normalizer fun(text: string, is_start: boolean): string   is_start: the text is at the start of one

local MAKERS = {}

-- A text may grow to so many times its size, and by so many bytes: others would fill the memory.
local TIMES, MORE = 16, 1024

---A part that a normalizer puts into a text.
---@param what string
---@param field string
local function short_text(what, field, value)
  if type(value) ~= "string" then known.refuse(what, field, value) end
  if #value <= MORE then return value end
  cbk.fail("unsupported", ("%s: %s has %d bytes; expected at most %d"):format(what, field, #value, MORE), { field = field })
end

---@param name string   of the normalizer
local function check_growth(name, before, after)
  if #after <= TIMES * #before + MORE then return after end
  cbk.fail("value", ("normalizer '%s': it makes %d bytes of %d; expected at most %d times as many"):format(name, #after, #before, TIMES))
end

---@return Normalizer
local function make(spec)
  local normalize = known.make("normalizer", MAKERS, spec)
  return function(text, is_start) return check_growth(spec.type, text, normalize(text, is_start)) end
end

function MAKERS.Sequence(spec)
  known.fields("normalizer 'Sequence'", spec, { "normalizers" })
  local list = {}
  for i, part in cbk.items(spec.normalizers) do list[i] = make(part) end
  return function(text, is_start)
    local out = text
    for _, normalize in ipairs(list) do out = check_growth("Sequence", text, normalize(out, is_start)) end
    return out
  end
end

function MAKERS.Prepend(spec)
  known.fields("normalizer 'Prepend'", spec, { "prepend" })
  local prefix = short_text("normalizer 'Prepend'", "prepend", spec.prepend)
  return function(text, is_start) return is_start and text ~= "" and prefix .. text or text end
end

--- Of one character only, since a text comes in pieces.
function MAKERS.Replace(spec)
  local what = "normalizer 'Replace'"
  known.fields(what, spec, { "pattern", "content" })
  known.fields(what, spec.pattern, { "String" })
  local points = unicode.points(spec.pattern.String)
  if not points or points.n ~= 1 then known.refuse(what, "pattern", spec.pattern) end
  local pattern, content = spec.pattern.String:gsub("%W", "%%%0"), short_text(what, "content", spec.content):gsub("%%", "%%%%")
  return function(text) return (text:gsub(pattern, content)) end
end

--- Nearly all texts are in NFC already. Others are refused.
function MAKERS.NFC(spec)
  known.fields("normalizer 'NFC'", spec, {})
  local joining = unicode.classes.joining
  return function(text)
    if not text:find "[\204-\244]" then return text end -- below U+0300
    local points = unicode.points(text) or { n = 0 } -- what is not UTF-8 is refused later
    for i = 1, points.n do
      if joining[points[i]] then
        cbk.fail("value", ("the text has the character U+%04X, which NFC may join with others or replace"):format(points[i]),
          { advice = "bring the text to NFC first; this is not done here" })
      end
    end
    return text
  end
end

---@param spec any   nil: none
---@return Normalizer?
function normalizers.make(spec) return spec ~= nil and make(spec) or nil end

return normalizers
