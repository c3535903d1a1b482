-- Choices in patterns: `{weight,bias}` means one of these, `[model.]` is a piece that may be missing. `{N}` is not a choice but a
-- number inside a part (patterns.lua).

local choices = {}

---@class Choice
---@field from integer     its first character in the pattern
---@field to integer       the character after it
---@field words string     as it is written
---@field kind string      "[", or "{" and how many texts
---@field texts string[]

local NONE = {}
local read = {} -- a cache, by pattern

---The name in a quoted part, with any characters; a quote inside is doubled. Nil for a part without quotes.
---@param part string
---@return string|nil
function choices.quoted_name(part)
  local inner = part:match "^'(.*)'$"
  if not inner or inner:gsub("''", ""):find("'", 1, true) then return nil end
  return (inner:gsub("''", "'"))
end

---A pattern with each character of its quoted parts replaced by x.
local function without_quoted(pattern)
  if not pattern:find("'", 1, true) then return pattern end
  return (pattern:gsub("[^.]+", function(part) return choices.quoted_name(part) and ("x"):rep(#part) or nil end))
end

---The choices of a pattern, in order.
---@param pattern string
---@return Choice[]   not to be changed
function choices.of(pattern)
  if read[pattern] then return read[pattern] end
  if not pattern:find "[{%[]" then return NONE end
  local out = {}
  for from, open, body, to in without_quoted(pattern):gmatch "()([{%[])([^{}%[%]]*)[}%]]()" do
    local texts, is_number = {}, open == "{" and body:find "^%u:?%d?$" ~= nil
    for text in (open == "{" and body .. "," or body .. ",,"):gmatch "([^,]*)," do texts[#texts + 1] = text end
    local kind = open == "{" and open .. #texts or open
    if not is_number then
      out[#out + 1] = { from = from, to = to, words = pattern:sub(from, to - 1), kind = kind, texts = texts }
    end
  end
  read[pattern] = out
  return out
end

---@param pattern string
---@param choice Choice    of this pattern
---@param i integer        which of its texts
---@return string
function choices.take(pattern, choice, i)
  return pattern:sub(1, choice.from - 1) .. choice.texts[i] .. pattern:sub(choice.to)
end

---The choices of a pattern that correspond to a choice of another pattern: those with the same text, else those of the same kind.
---@param pattern string
---@param choice Choice
---@param other string     the pattern that `choice` is from
---@return Choice[]        several if the text does not decide
function choices.partners(pattern, choice, other)
  local same, alike = {}, {}
  for _, own in ipairs(choices.of(pattern)) do
    local is_free = own.kind == choice.kind and not other:find(own.words, 1, true)
    local list = own.words == choice.words and same or is_free and alike
    if list then list[#list + 1] = own end
  end
  return #same > 0 and same or alike
end

---What is wrong with a pattern, or nil.
---@param pattern string
---@return string|nil
function choices.mistake(pattern)
  if pattern:find "^[%w_]+$" then return nil end
  local plain = without_quoted(pattern):gsub("{[^{}%[%]]+}", "x"):gsub("%[[^{}%[%],]+%]", "")
  local bracket, strange = plain:match "[{}%[%]]", plain:match "[\\^$()?+|%s,]"
  if bracket then return ("'%s' in '%s' has no partner, or nothing in it, or another one in it"):format(bracket, pattern) end
  if strange then
    return ("'%s' cannot be in '%s': a pattern is a dotted key, with N, {a,b}, [a.] and *; quote names: 'a b'.c"):format(strange, pattern)
  end
  for part in (plain .. "."):gmatch "([^.]*)%." do
    if part == "" then return ("'%s' has an empty part"):format(pattern) end
    if part ~= "*" and part:find("*", 1, true) then return ("'*' in '%s' matches whole parts only"):format(pattern) end
  end
  -- A key must have one reading: a hostile one could have too many to try them all.
  if plain:find "%*.*%*" then return ("'%s' has several '*'; a pattern may have one"):format(pattern) end
  local has_pairs = without_quoted(pattern):find "{%u:?%d*}{%u:?%d*}"
  if has_pairs then return ("'%s' has two numbers side by side; put a text between them"):format(pattern) end
end

return choices
