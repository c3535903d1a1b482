-- Normalizers of a tokenizer.json: what happens to a text before it is split.

local cbk = require "cbk"
local known = require "cbk.tokens.known"
local unicode = require "cbk.tokens.unicode"

local normalizers = {}

---@alias Normalizer fun(text: string, is_start: boolean): string   is_start: the text is at the start of one

local MAKERS = {}

local function make(spec) return known.make("normalizer", MAKERS, spec) end

function MAKERS.Sequence(spec)
  known.fields("normalizer 'Sequence'", spec, { "normalizers" })
  local list = {}
  for i, part in cbk.items(spec.normalizers) do list[i] = make(part) end
  return function(text, is_start)
    for _, normalize in ipairs(list) do text = normalize(text, is_start) end
    return text
  end
end

function MAKERS.Prepend(spec)
  known.fields("normalizer 'Prepend'", spec, { "prepend" })
  local prefix = spec.prepend
  return function(text, is_start) return is_start and text ~= "" and prefix .. text or text end
end

--- Of one character only, since a text comes in pieces.
function MAKERS.Replace(spec)
  local what = "normalizer 'Replace'"
  known.fields(what, spec, { "pattern", "content" })
  known.fields(what, spec.pattern, { "String" })
  local points = unicode.points(spec.pattern.String)
  if not points or points.n ~= 1 then known.refuse(what, "pattern", spec.pattern) end
  local pattern, content = spec.pattern.String:gsub("%W", "%%%0"), spec.content:gsub("%%", "%%%%")
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
