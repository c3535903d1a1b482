-- Pre-tokenizers of a tokenizer.json: how a text is split into the words within which a model joins symbols.

local cbk = require "cbk"
local known = require "cbk.tokens.known"
local pattern = require "cbk.tokens.pattern"
local unicode = require "cbk.tokens.unicode"

local pre_tokenizers = {}

---@class PreTokenizer
---@field prefix? fun(text: string, is_first: boolean): string   at the start of a text; is_first: of the whole text
---@field split fun(text: string, is_whole: boolean): string[], string   the words, and the rest that more text may change
---@field is_byte_level? boolean

--- How GPT-2 splits a text.
local GPT2 = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]

local function by_pattern(source)
  local compiled = pattern.compile(source)
  return function(text, is_whole) return compiled:split(text, is_whole) end
end

local function unsplit(text, is_whole)
  if is_whole then return { text }, "" end
  return {}, text
end

---Splits before a mark, or before the first of several in a row.
---@param mark string
---@param is_each boolean   before each
---@return fun(text: string, is_whole: boolean): string[], string
function pre_tokenizers.before_mark(mark, is_each)
  return function(text, is_whole)
    local words, first, from = {}, 1, 1
    while true do
      local at = text:find(mark, from, true)
      if not at then break end
      local is_row = not is_each and text:sub(at - #mark, at - 1) == mark
      if at > first and not is_row then
        words[#words + 1] = text:sub(first, at - 1)
        first = at
      end
      from = at + #mark
    end
    if not is_whole then return words, text:sub(first) end
    words[#words + 1] = text:sub(first)
    return words, ""
  end
end

local MAKERS = {}

local function make(spec) return known.make("pre_tokenizer", MAKERS, spec) end

function MAKERS.ByteLevel(spec)
  known.fields("pre_tokenizer 'ByteLevel'", spec, { "add_prefix_space", "trim_offsets", "use_regex" })
  local adds = known.get(spec, "add_prefix_space") ~= false
  return {
    is_byte_level = true,
    split = known.get(spec, "use_regex") == false and unsplit or by_pattern(GPT2),
    prefix = adds and function(text) return text:sub(1, 1) == " " and text or " " .. text end or nil,
  }
end

function MAKERS.Split(spec)
  local what = "pre_tokenizer 'Split'"
  known.fields(what, spec, { "pattern", "behavior", "invert" })
  known.fields(what, spec.pattern, { "Regex" })
  known.one_of(what, spec, "behavior", "Isolated")
  known.one_of(what, spec, "invert", false)
  return { split = by_pattern(spec.pattern.Regex) }
end

function MAKERS.Digits(spec)
  known.fields("pre_tokenizer 'Digits'", spec, { "individual_digits" })
  return { split = by_pattern(spec.individual_digits and "\\p{N}" or "\\p{N}+") }
end

function MAKERS.Metaspace(spec)
  local what = "pre_tokenizer 'Metaspace'"
  known.fields(what, spec, { "replacement", "add_prefix_space", "prepend_scheme", "split" })
  known.one_of(what, spec, "prepend_scheme", "always", "first", "never")
  local mark, points = spec.replacement, type(spec.replacement) == "string" and unicode.points(spec.replacement)
  if not points or points.n ~= 1 then known.refuse(what, "replacement", mark) end
  local scheme = known.get(spec, "prepend_scheme") or known.get(spec, "add_prefix_space") == false and "never" or "always"
  local split = known.get(spec, "split") ~= false and pre_tokenizers.before_mark(mark, true) or unsplit
  return {
    split = function(text, is_whole) return split(text:gsub(" ", mark), is_whole) end,
    prefix = scheme ~= "never" and function(text, is_first)
      local is_prefixed = text:sub(1, 1) == " " or text:sub(1, #mark) == mark
      if is_prefixed or scheme == "first" and not is_first then return text end
      return mark .. text
    end or nil,
  }
end

--- The first splits the text, the others the words of the one before.
function MAKERS.Sequence(spec)
  local what = "pre_tokenizer 'Sequence'"
  known.fields(what, spec, { "pretokenizers" })
  local parts, is_byte_level = {}, false
  for i, part in cbk.items(spec.pretokenizers) do
    parts[i] = make(part)
    if i > 1 and parts[i].prefix then known.refuse(what, "a prefix within the sequence", part) end
    is_byte_level = is_byte_level or parts[i].is_byte_level
  end
  if not parts[1] then known.refuse(what, "pretokenizers", spec.pretokenizers) end
  local function split(text, is_whole, i)
    local words, rest = parts[i].split(text, is_whole)
    if not parts[i + 1] then return words, rest end
    local out = {}
    for _, word in ipairs(words) do
      for _, piece in ipairs((split(word, true, i + 1))) do out[#out + 1] = piece end
    end
    return out, rest
  end
  return { is_byte_level = is_byte_level, prefix = parts[1].prefix, split = function(text, is_whole) return split(text, is_whole, 1) end }
end

---@param spec any   nil: none, the whole text is a word
---@return PreTokenizer
function pre_tokenizers.make(spec) return spec ~= nil and make(spec) or { split = unsplit } end

return pre_tokenizers
