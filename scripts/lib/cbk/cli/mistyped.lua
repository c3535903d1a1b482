-- What may be meant by an unknown option, or by an argument that is too many.

local cbk = require "cbk"
local naming = require "cbk.naming"
local words = require "cbk.cli.words"

local mistyped = {}

local MOST = 3 -- names in a message

---@return string[]   long names, as help has them
local function long_names(parser)
  local out = {}
  for _, option in ipairs(parser._options) do
    for _, name in ipairs(option._hidden and {} or option._public_aliases) do
      if name:find "^%-%-" and out[#out] ~= name:gsub("_", "-") then out[#out + 1] = name end
    end
  end
  return out
end

---Whether a known option, "--to-dtype", has the words of what was typed: "--dtype".
local function has_words(name, typed) return (name:sub(2) .. "-"):find(typed:sub(2) .. "-", 1, true) ~= nil end

---@param parser table
---@param typed string   "--over"
---@return string   "unknown option '--over'; did you mean '--overwrite'?"
function mistyped.option(parser, typed)
  local names, near = long_names(parser), {}
  local wanted = typed:gsub("_", "-")
  for _, name in ipairs(#wanted > 2 and names or {}) do
    local is_like = name:sub(1, #wanted) == wanted or has_words(name, wanted)
    if is_like and #near < MOST then near[#near + 1] = name end
  end
  return ("unknown option %s%s"):format(cbk.quote(typed), naming.suggestion(#near > 0 and near or cbk.nearest(wanted, names, MOST)))
end

local BY_ARGNAME = {
  DTYPE = function(word) return (pcall(cbk.dtype, word)) end,
  FORMAT = function(word) return word == "hf" or word:find "^cs%-%d" ~= nil end,
}

---Whether a word can be the value of an option, which no other value looks like.
local function takes(option, word)
  local names = option.candidates or option._choices
  if option._maxargs == 0 then return false end
  if names then
    for _, name in ipairs(type(names) == "function" and names() or names) do
      if name == word then return true end
    end
    return false
  end
  local accepts = BY_ARGNAME[option:_get_argname(1)]
  return accepts ~= nil and accepts(word)
end

---@param parser table
---@param line string[]   the words behind the command
---@return string   "too many arguments: 'cs-2.5' is one too many; did you mean '--to cs-2.5'?"
function mistyped.argument(parser, line)
  local most, before = 0, { unpack(line) }
  for _, argument in ipairs(parser._arguments) do most = most + argument._maxargs end
  before[#before + 1] = "" -- a place is before its last word
  local place = words.place(parser, before)
  local extra, near = place.values.arguments[most + 1], {}
  if not extra then return "too many arguments" end
  for _, option in ipairs(parser._options) do
    if not option._hidden and not place.used[option] and takes(option, extra) then
      near[#near + 1] = ("%s %s"):format(option._public_aliases[1], extra)
    end
  end
  return ("too many arguments: %s is one too many%s"):format(cbk.quote(extra), naming.suggestion(near))
end

return mistyped
