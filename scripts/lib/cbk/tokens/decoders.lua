-- Decoders of a tokenizer.json: the text that tokens stand for.

local byte_letters = require "cbk.tokens.byte_letters"
local cbk = require "cbk"
local known = require "cbk.tokens.known"

local decoders = {}

---@alias Decoder fun(tokens: string[]): string[]   the parts of the text

local MAKERS = {}

local function make(spec) return known.make("decoder", MAKERS, spec) end

local function each(tokens, change)
  local out = {}
  for i, token in ipairs(tokens) do out[i] = change(token, i) end
  return out
end

local function escaped(text) return (text:gsub("%W", "%%%0")) end

function MAKERS.ByteLevel(spec)
  known.fields("decoder 'ByteLevel'", spec, { "add_prefix_space", "trim_offsets", "use_regex" })
  return function(tokens) return each(tokens, byte_letters.read) end
end

function MAKERS.Replace(spec)
  known.fields("decoder 'Replace'", spec, { "pattern", "content" })
  known.fields("decoder 'Replace'", spec.pattern, { "String" })
  local pattern, content = escaped(spec.pattern.String), spec.content:gsub("%%", "%%%%")
  return function(tokens) return each(tokens, function(token) return (token:gsub(pattern, content)) end) end
end

function MAKERS.ByteFallback(spec)
  known.fields("decoder 'ByteFallback'", spec, {})
  return function(tokens)
    return each(tokens, function(token)
      local hex = token:match "^<0x(%x%x)>$"
      return hex and string.char(tonumber(hex, 16)) or token
    end)
  end
end

function MAKERS.Fuse(spec)
  known.fields("decoder 'Fuse'", spec, {})
  return function(tokens) return { table.concat(tokens) } end
end

function MAKERS.Strip(spec)
  known.fields("decoder 'Strip'", spec, { "content", "start", "stop" })
  local content = spec.content
  return function(tokens)
    return each(tokens, function(token)
      local first, last = 1, #token
      for _ = 1, spec.start do
        if token:sub(first, first + #content - 1) == content then first = first + #content else break end
      end
      for _ = 1, spec.stop do
        if last >= first and token:sub(last - #content + 1, last) == content then last = last - #content else break end
      end
      return token:sub(first, last)
    end)
  end
end

function MAKERS.Metaspace(spec)
  known.fields("decoder 'Metaspace'", spec, { "replacement", "add_prefix_space", "prepend_scheme", "split" })
  local mark = escaped(spec.replacement)
  local has_prefix = known.get(spec, "prepend_scheme") ~= "never" and known.get(spec, "add_prefix_space") ~= false
  return function(tokens)
    return each(tokens, function(token, i)
      local text = token:gsub(mark, " ")
      return i == 1 and has_prefix and text:gsub("^ ", "") or text
    end)
  end
end

function MAKERS.Sequence(spec)
  known.fields("decoder 'Sequence'", spec, { "decoders" })
  local list = {}
  for i, part in cbk.items(spec.decoders) do list[i] = make(part) end
  return function(tokens)
    for _, decode in ipairs(list) do tokens = decode(tokens) end
    return tokens
  end
end

---@param spec any   nil: none, tokens are words
---@return Decoder
function decoders.make(spec)
  if spec ~= nil then return make(spec) end
  return function(tokens) return { table.concat(tokens, " ") } end
end

return decoders
