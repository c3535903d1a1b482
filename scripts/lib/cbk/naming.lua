-- Lists of names for messages.

local cbk = require "cbk"
local fold = require "cbk.fold"

local naming = {}

local MOST_QUOTED = 300 -- bytes of a name that may be meant: users copy it

-- Names come from files, and may be long: a pattern that begins anywhere and ends at the end takes quadratic time.

---What is behind the last dot of a name.
---@param name string
---@return string
function naming.last(name) return name:match "^.*%.(.*)$" or name end

---The last two parts of a name with dots.
---@param name string
---@return string
function naming.ending(name) return name:match "([^.]*%.[^.]*)$" or name end

---A text without the spaces around it.
---@param text string
---@return string
function naming.trimmed(text) return text:match "^%s*(.*%S)" or "" end

---The keys of a map, sorted.
---@param map table<string, any>
---@return string[]
function naming.sorted(map)
  local out = {}
  for name in pairs(map) do out[#out + 1] = name end
  table.sort(out)
  return out
end

---@param names string   separated by spaces
---@return table<string, true>
function naming.set(names)
  local out = {}
  for name in names:gmatch "%S+" do out[name] = true end
  return out
end

---All names, for keys that are left out. Names that differ only in their numbers are folded: "layers.{0..31}.weight".
---@param list string[]
---@return string
function naming.all_folded(list)
  local entries, names = {}, {}
  for i, name in ipairs(list) do entries[i] = { path = tostring(name) } end
  for i, group in ipairs(fold.groups(entries)) do names[i] = group.name end
  return table.concat(names, ", ")
end

---The first few names. Names that differ only in their numbers are folded: "layers.{0..31}.weight".
---@param list string[]   may contain only the first names, with the number of all as `count`
---@param most? integer   names that are shown (default: 5)
---@return string
function naming.folded(list, most)
  local entries, names, named = {}, {}, 0
  for i, name in ipairs(list) do entries[i] = { path = tostring(name) } end
  for i, group in ipairs(fold.groups(entries)) do
    if i <= (most or 5) then names[i], named = group.name, named + #group.members end
  end
  local rest = (list.count or #list) - named
  return table.concat(names, ", ") .. (rest > 0 and (", … and %d more"):format(rest) or "")
end

---@param list { count: integer? }   may contain only the first names, if `count` is set
---@param most? integer   names that are shown (default: 20)
---@return string
function naming.listed(list, most)
  local shown = {}
  for i = 1, math.min(#list, most or 20) do shown[i] = tostring(list[i]) end
  local rest = (list.count or #list) - #shown
  return table.concat(shown, ", ") .. (rest > 0 and (", … and %d more"):format(rest) or "")
end

---The question about a mistyped name: "did you mean 'a' or 'b'?", or nil if no name is similar.
---@param near? string|string[]|false   similar names, best first
---@return string|nil
function naming.question(near)
  local quoted = {}
  for i, name in ipairs(type(near) == "string" and { near } or near or {}) do quoted[i] = cbk.quote(name, MOST_QUOTED) end
  return quoted[1] and ("did you mean %s?"):format(table.concat(quoted, " or "))
end

---The question as the end of a message: "; did you mean 'a' or 'b'?", or an empty text.
---@param near? string|string[]|false   similar names, best first
---@return string
function naming.suggestion(near)
  local question = naming.question(near)
  return question and "; " .. question or ""
end

return naming
