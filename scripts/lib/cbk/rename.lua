-- New names for keys: "OLD=NEW" as `cbk copy --rename` has it. "\=" is a "=" of OLD.

local cbk = require "cbk"

local rename = {}

---@class RenameRule
---@field text string   as it was written
---@field hits integer  keys it has changed
---@field apply fun(key: string): string

local function escaped(text) return (text:gsub("%p", "%%%0")) end

--- Plain text: every occurrence.
local function plain_rule(old, new)
  local pattern, replacement = escaped(old), new:gsub("%%", "%%%%")
  return function(key) return (key:gsub(pattern, replacement)) end
end

--- A glob over the whole key; the n-th wildcard of the replacement is what the n-th of the pattern matched.
local function glob_rule(old, new)
  local wildcards = 0
  local pattern = old:gsub("[^*?]+", escaped):gsub("[*?]", function(c)
    wildcards = wildcards + 1
    return c == "*" and "(.*)" or "(.)"
  end)
  if wildcards > 30 then return nil, ("'%s' has more than 30 wildcards"):format(old) end
  local used = 0
  local parts = {}
  for literal, wildcard in new:gmatch "([^*?]*)([*?]?)" do
    if literal ~= "" then parts[#parts + 1] = literal end
    if wildcard ~= "" then
      used = used + 1
      parts[#parts + 1] = used
    end
  end
  if used > wildcards then return nil, ("'%s' has more wildcards than '%s'"):format(new, old) end
  return function(key)
    local captures = { key:match("^" .. pattern .. "$") }
    if #captures == 0 then return key end
    local out = {}
    for i, part in ipairs(parts) do out[i] = type(part) == "number" and captures[part] or part end
    return table.concat(out)
  end
end

--- Lua finds out what is wrong with a pattern only where it comes to that part of it.
local function pattern_rule(old, new)
  return function(key)
    local ok, changed = pcall(string.gsub, key, old, new)
    if not ok then cbk.fail("usage", ("'%s=%s' is no Lua pattern: %s"):format(old, new, changed)) end
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

---The rule that "OLD=NEW" says, or nil and what is wrong with it.
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
