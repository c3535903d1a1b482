-- New names for keys: "OLD=NEW", as in `cbk copy --rename`. "\=" is a "=" in OLD.

local cbk = require "cbk"

local rename = {}

---@class RenameRule
---@field text string   as written
---@field hits integer  the number of keys that it has changed
---@field apply fun(key: string): string

local function escaped(text) return (text:gsub("%p", "%%%0")) end

--- Plain text: every occurrence.
local function plain_rule(old, new)
  local pattern, replacement = escaped(old), new:gsub("%%", "%%%%")
  return function(key) return (key:gsub(pattern, replacement)) end
end

--- A glob over the whole key. The n-th wildcard of the replacement stands for the match of the pattern's n-th wildcard. A "*" matches as
--- much as it can, so the texts between wildcards are searched from the end, in the reversed key. A Lua pattern would try every division
--- of the key among the stars, which takes minutes for a hostile key.
local function glob_rule(old, new)
  local _, wildcards = old:gsub("[*?]", "")
  local _, used = new:gsub("[*?]", "")
  if wildcards > 30 then return nil, ("'%s' has more than 30 wildcards"):format(old) end
  if used > wildcards then return nil, ("'%s' has more wildcards than '%s'"):format(new, old) end
  local between = {} -- the last one first, as patterns
  for text in (old:reverse() .. "*"):gmatch "([^*]*)%*" do
    between[#between + 1] = text:gsub("[^?]+", escaped):gsub("%?", "(.)")
  end
  local count = #between
  for i = 1, count, math.max(count - 1, 1) do between[i] = "^" .. between[i] end
  between[count] = between[count] .. "$"

  ---The matches of the wildcards, the last one first.
  local function captures_of(key)
    local reversed, at, out = key:reverse(), 1, {}
    for i, pattern in ipairs(between) do
      local from = at
      if i == count and i > 1 then from = #reversed + 1 - #old:match "^[^*]*" end
      if from < at then return nil end
      local found = { reversed:find(pattern, from) }
      if not found[1] then return nil end
      if i > 1 then out[#out + 1] = reversed:sub(at, found[1] - 1):reverse() end
      for k = 3, #found do out[#out + 1] = found[k] end
      at = found[2] + 1
    end
    return out
  end

  return function(key)
    local captures = captures_of(key)
    if not captures then return key end
    local next_one = #captures + 1
    return (new:gsub("[*?]", function()
      next_one = next_one - 1
      return captures[next_one]
    end))
  end
end

--- The end of the character class at `at`, or nil and what is wrong with it.
local function class_end(pattern, at)
  local c = pattern:sub(at, at)
  if c == "%" then
    if at == #pattern then return nil, "it ends with '%'" end
    return at + 1
  elseif c ~= "[" then
    return at
  end
  local inside = at + (pattern:sub(at + 1, at + 1) == "^" and 2 or 1)
  repeat
    if inside > #pattern then return nil, "a '[' lacks its ']'" end
    inside = inside + (pattern:sub(inside, inside) == "%" and 2 or 1)
  until pattern:sub(inside, inside) == "]"
  return inside
end

local MOST_CAPTURES = 32

--- What is wrong with a Lua pattern, or nil and its captures. Lua itself reports an error only when matching reaches that part.
local function pattern_problem(pattern)
  local captures, open, at = {}, {}, 1 -- captures: whether each is closed
  while at <= #pattern do
    local two, stop, problem = pattern:sub(at, at + 1), nil, nil
    if two:sub(1, 1) == "(" then
      captures[#captures + 1], open[#open + 1], stop = false, #captures + 1, at
      if #captures > MOST_CAPTURES then problem = ("it has more than %d captures"):format(MOST_CAPTURES) end
    elseif two:sub(1, 1) == ")" then
      local capture = table.remove(open)
      if capture then captures[capture], stop = true, at else problem = "a ')' lacks its '('" end
    elseif two == "%b" then
      if at + 3 > #pattern then problem = "'%b' needs two characters" else stop = at + 3 end
    elseif two == "%f" then
      if pattern:sub(at + 2, at + 2) ~= "[" then problem = "'%f' needs a '['" else stop, problem = class_end(pattern, at + 2) end
    elseif two:find "^%%%d" then
      if captures[tonumber(two:sub(2))] then stop = at + 1 else problem = ("there is no capture for '%s'"):format(two) end
    else
      stop, problem = class_end(pattern, at)
    end
    if problem then return problem end
    at = stop + 1
  end
  if #open > 0 then return "a '(' lacks its ')'" end
  return nil, #captures
end

local function replacement_problem(new, captures)
  for _, c in new:gmatch "()%%(.?)" do
    if c == "" then return "what replaces it ends with '%'" end
    if c:find "%d" and tonumber(c) > math.max(captures, 1) then return ("it has no capture for '%%%s'"):format(c) end
  end
end

local function pattern_rule(old, new)
  local function problem_text(problem) return ("'%s=%s' is no Lua pattern: %s"):format(old, new, problem) end
  local problem, captures = pattern_problem(old)
  problem = problem or replacement_problem(new, captures)
  if problem then return nil, problem_text(problem) end
  return function(key)
    local ok, changed = pcall(string.gsub, key, old, new) -- the pattern may be too complex
    if not ok then cbk.fail("usage", problem_text(changed)) end
    return changed
  end
end

--- Splits at the first "=" without a backslash before it.
local function split(text)
  local at = 0
  repeat
    at = text:find("=", at + 1, true)
    if not at then return nil end
  until not text:sub(1, at - 1):find "\\$"
  return (text:sub(1, at - 1):gsub("\\=", "=")), text:sub(at + 1)
end

---The rule of "OLD=NEW", or nil and what is wrong with it.
---@param text string
---@return RenameRule|nil rule, string|nil problem
function rename.parse(text)
  local old, new = split(text)
  if not old or old == "" then return nil, ("'%s' should be OLD=NEW"):format(text) end
  local make = plain_rule
  if old:find "^%^" or old:find "%$$" or old:find "%%" then
    make = pattern_rule
  elseif old:find "[*?]" then
    make = glob_rule
  end
  local change, problem = make(old, new)
  if not change then return nil, problem end
  local rule = { text = text, hits = 0 }
  function rule.apply(key)
    local changed = change(key)
    if changed ~= key then rule.hits = rule.hits + 1 end
    return changed
  end
  return rule
end

return rename
