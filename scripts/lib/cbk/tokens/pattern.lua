-- The regular expressions by which tokenizers split a text: alternatives, classes of Unicode, greedy repetition, looking ahead. They
-- match code points. A construct that is not known is an error that names it.

local cbk = require "cbk"
local unicode = require "cbk.tokens.unicode"

local pattern = {}

---@class MatchedText
---@field points CodePoints
---@field saw_end boolean   a match asked for what follows the text

---@alias Matcher fun(text: MatchedText, at: integer): integer?   the end of a match, exclusive
---@alias Part fun(following: Matcher): Matcher   a part of a pattern, with what must match behind it

-- --- reading a pattern

---@class PatternReader
---@field source string
---@field points CodePoints
---@field at integer
---@field folds boolean    upper and lower case are the same
---@field depth integer    of groups within groups
local Reader = {}
Reader.__index = Reader

local function refuse(reader, what)
  cbk.fail("unsupported", ("the pattern %s has %s, which is not known"):format(cbk.quote(reader.source), what))
end

function Reader:peek(ahead) return self.points[self.at + (ahead or 0)] end

--- Whether an ASCII text comes next; it is then read.
function Reader:take(word)
  for i = 1, #word do
    if self:peek(i - 1) ~= word:byte(i) then return false end
  end
  self.at = self.at + #word
  return true
end

local CONTROLS = { n = 10, r = 13, t = 9, f = 12, v = 11 }

--- The class `\p{L}`, behind its `\p`.
local function property(reader, is_negated)
  if not reader:take "{" then refuse(reader, "\\p without {") end
  local name = ""
  while reader:peek() and reader:peek() ~= 0x7d do
    name = name .. unicode.char(reader:peek())
    reader.at = reader.at + 1
  end
  if not reader:take "}" or not (name == "L" or name == "N") then refuse(reader, ("\\p{%s}"):format(name)) end
  return { class = unicode.classes[name], is_negated = is_negated }
end

--- What follows a backslash: { class, is_negated } or a code point.
local function escape(reader)
  local code = reader:peek()
  if not code then refuse(reader, "a backslash at its end") end
  reader.at = reader.at + 1
  local letter = code < 128 and string.char(code) or ""
  if letter == "p" or letter == "P" then return property(reader, letter == "P") end
  if letter == "s" or letter == "S" then return { class = unicode.classes.s, is_negated = letter == "S" } end
  if CONTROLS[letter] then return CONTROLS[letter] end
  if letter:find "[%w]" then refuse(reader, "\\" .. letter) end
  return code
end

--- ASCII letters in both cases, and the long s, which is an s in either.
local function variants(code)
  local letter = code < 128 and string.char(code) or ""
  if not letter:find "%a" then return { code } end
  local list = { letter:lower():byte(), letter:upper():byte() }
  if letter:lower() == "s" then list[3] = 0x17f end
  if letter:lower() == "k" then list[3] = 0x212a end
  return list
end

---@alias CodeTest fun(code: integer): boolean

--- A test of one code point.
local function test_of(part, folds)
  if type(part) == "table" then
    local class, is_negated = part.class, part.is_negated
    return function(code) return class[code] ~= is_negated end
  end
  local set = {}
  for _, code in ipairs(folds and variants(part) or { part }) do set[code] = true end
  return function(code) return set[code] ~= nil end
end

--- One member of a bracket: a code point, an escape, or a range.
local function bracket_member(reader)
  local code = reader:peek()
  if not code then refuse(reader, "[ without ]") end
  if code == 0x5b then refuse(reader, "[ within [ ]") end
  if reader:take "&&" then refuse(reader, "&&") end
  reader.at = reader.at + 1
  local part = code == 0x5c and escape(reader) or code
  local is_range = type(part) == "number" and reader:peek() == 0x2d and reader:peek(1) ~= 0x5d
  if not is_range then return test_of(part, reader.folds) end
  reader.at = reader.at + 1
  local last = reader:peek()
  if not last then refuse(reader, "[ without ]") end
  reader.at = reader.at + 1
  if last == 0x5c then last = escape(reader) end
  if type(last) ~= "number" or reader.folds then refuse(reader, "such a range in [ ]") end
  return function(one) return one >= part and one <= last end
end

--- A bracket, behind its `[`.
local function bracket(reader)
  local is_negated, tests = reader:take "^", {}
  repeat tests[#tests + 1] = bracket_member(reader) until reader:take "]"
  return function(code)
    for _, test in ipairs(tests) do
      if test(code) then return not is_negated end
    end
    return is_negated
  end
end

-- --- parts

--- The code point at a position; nil behind the last.
local function code_at(text, at)
  local code = text.points[at]
  if not code then text.saw_end = true end
  return code
end

---@param test CodeTest
---@return Part
local function one(test)
  return function(following)
    return function(text, at)
      local code = code_at(text, at)
      if code and test(code) then return following(text, at + 1) end
    end
  end
end

--- As many code points as pass a test, then fewer.
---@return Part
local function many(test, least, most)
  return function(following)
    return function(text, at)
      local count = 0
      while count < most do
        local code = code_at(text, at + count)
        if not code or not test(code) then break end
        count = count + 1
      end
      for taken = count, least, -1 do
        local stop = following(text, at + taken)
        if stop then return stop end
      end
    end
  end
end

---@param parts Part[]
---@return Part
local function sequence(parts)
  return function(following)
    for i = #parts, 1, -1 do following = parts[i](following) end
    return following
  end
end

---@param parts Part[]
---@return Part
local function either(parts)
  if not parts[2] then return parts[1] end
  return function(following)
    local matchers = {}
    for i, part in ipairs(parts) do matchers[i] = part(following) end
    return function(text, at)
      for i = 1, #matchers do
        local stop = matchers[i](text, at)
        if stop then return stop end
      end
    end
  end
end

local function nothing(following) return following end

local function last(_, at) return at end

---@param part Part
---@return Part
local function ahead(part, is_negated)
  local matcher = part(last)
  return function(following)
    return function(text, at)
      local is_found = matcher(text, at) ~= nil
      if is_found ~= is_negated then return following(text, at) end
    end
  end
end

-- --- the grammar

local LONGEST, DEEPEST = 4096, 64 -- code points of a pattern, and groups within groups: each is a call within another

local alternatives -- of a pattern or a group

--- A group, behind its `(`.
local function group(reader)
  local folds, wrap = reader.folds, nil
  reader.depth = reader.depth + 1
  if reader.depth > DEEPEST then refuse(reader, ("more than %d groups within one another"):format(DEEPEST)) end
  if reader:take "?i:" then
    reader.folds = true
  elseif reader:take "?!" then
    wrap = true
  elseif reader:take "?=" then
    wrap = false
  elseif not reader:take "?:" and reader:peek() == 0x3f then
    refuse(reader, "such a group: (?")
  end
  local part = alternatives(reader)
  if not reader:take ")" then refuse(reader, "( without )") end
  reader.folds, reader.depth = folds, reader.depth - 1
  if wrap ~= nil then return ahead(part, wrap) end
  return part
end

--- A test of one code point, or else a group.
---@return CodeTest? test, Part? group
local function atom(reader)
  local code = reader:peek()
  local letter = code < 128 and string.char(code) or ""
  reader.at = reader.at + 1
  if letter == "(" then return nil, group(reader) end
  if letter == "[" then return bracket(reader) end
  if letter == "\\" then return test_of(escape(reader), reader.folds) end
  if letter:find "[*+?{^$.]" then refuse(reader, letter) end
  return test_of(code, reader.folds)
end

--- How often: from `{2,3}`, behind its `{`.
local function counted(reader)
  local text = ""
  while reader:peek() and reader:peek() ~= 0x7d do
    text = text .. unicode.char(reader:peek())
    reader.at = reader.at + 1
  end
  local least, comma, most = text:match "^(%d+)(,?)(%d*)$"
  if not least or not reader:take "}" then refuse(reader, ("{%s"):format(text)) end
  if comma == "" then most = least end
  return tonumber(least), most == "" and math.huge or tonumber(most)
end

local function quantity(reader)
  local least, most = 1, 1
  if reader:take "*" then
    least, most = 0, math.huge
  elseif reader:take "+" then
    most = math.huge
  elseif reader:take "?" then
    least = 0
  elseif reader:take "{" then
    least, most = counted(reader)
  else
    return 1, 1
  end
  local code = reader:peek()
  if code == 0x2b or code == 0x3f then refuse(reader, "two quantifiers in a row") end
  return least, most
end

local function alternative(reader)
  local parts = {}
  while reader:peek() and reader:peek() ~= 0x7c and reader:peek() ~= 0x29 do
    local test, inner = atom(reader)
    local least, most = quantity(reader)
    local is_once = least == 1 and most == 1
    if test then
      parts[#parts + 1] = is_once and one(test) or many(test, least, most)
    elseif most == 1 then
      parts[#parts + 1] = is_once and inner or either { inner, nothing }
    else
      refuse(reader, "a group that is repeated")
    end
  end
  if not parts[1] then refuse(reader, "an empty alternative") end
  return sequence(parts)
end

function alternatives(reader)
  local list = {}
  repeat list[#list + 1] = alternative(reader) until not reader:take "|"
  return either(list)
end

---@class TokenPattern
---@field matcher Matcher
local Pattern = {}
Pattern.__index = Pattern

---@param source string
---@return TokenPattern
function pattern.compile(source)
  local points = unicode.points(source) or cbk.fail("format", "a pattern that is no UTF-8")
  if points.n > LONGEST then
    cbk.fail("unsupported", ("the pattern %s … has %d characters; expected at most %d"):format(cbk.quote(source:sub(1, 40)), points.n,
      LONGEST))
  end
  local reader = setmetatable({ source = source, points = points, at = 1, folds = false, depth = 0 }, Reader)
  local part = alternatives(reader)
  if reader:peek() then refuse(reader, ") without (") end
  return setmetatable({ matcher = part(last) }, Pattern)
end

---The pieces of a text: what matches, and what lies between matches.
---@param text string
---@param is_whole boolean   false: more may follow. Pieces that it might change are not among those returned
---@return string[] pieces
---@return string rest       what is not in them
function Pattern:split(text, is_whole)
  local points, bad = unicode.points(text)
  if not points then cbk.fail("value", ("the text is not UTF-8 at its byte 0x%02x"):format(text:byte(bad))) end
  local matched, pieces, at, gap = { points = points, saw_end = false }, {}, 1, nil
  local starts = points.starts
  local function add(first, stop) pieces[#pieces + 1] = text:sub(starts[first], starts[stop] - 1) end
  while at <= points.n do
    matched.saw_end = false
    local stop = self.matcher(matched, at)
    if matched.saw_end and not is_whole then break end
    if stop and stop > at then
      if gap then add(gap, at) end
      add(at, stop)
      gap, at = nil, stop
    else
      gap, at = gap or at, at + 1
    end
  end
  if gap and is_whole then
    add(gap, at)
    gap = nil
  end
  return pieces, text:sub(starts[gap or at])
end

return pattern
