-- Help from annotations (LuaCATS): meta.lua, and the functions of its public modules. `---@private` marks functions for cbk's own
-- scripts: they have help, but lists and completion leave them out.

local cbk = require "cbk"
local annotations = require "cbk.annotations"
local examples = require "cbk.help_examples"

local help = {}

---@type table<string, Annotation>, Annotation[]
local index, order

--- All entries by name, and those that are public in their order; read once.
local function entries()
  if index then return index, order end
  index, order = {}, {}
  local function add(entry)
    if index[entry.name] then return end
    index[entry.name] = entry
    local class = index[entry.name:match "^(%w+):"]
    entry.is_private = entry.is_private or class and class.is_private
    if not entry.is_private then order[#order + 1] = entry end
  end
  local meta = assert(package.searchpath("cbk.meta", package.path))
  for _, entry in ipairs(annotations.read(meta)) do
    if entry.kind ~= "value" or #entry.text > 0 then add(entry) end
  end
  for module in cbk.fs.read(meta):gmatch '\ncbk%.([%w_]+) = require "cbk%.%1"' do
    local path = assert(package.searchpath("cbk." .. module, package.path))
    local own_name = cbk.fs.read(path):match "return ([%a_][%w_]*)%s*$" or module -- `state` in dataloader_state.lua
    for _, entry in ipairs(annotations.read(path, { [own_name] = "cbk." .. module })) do
      if entry.kind == "value" then
        entry.name = entry.name:gsub("^" .. own_name .. "%.", "cbk." .. module .. ".")
        entry.signature = entry.name
      end
      if entry.kind ~= "class" and entry.is_documented then add(entry) end
    end
  end
  return index, order
end

-- --- showing

local function described(list, out, name_of)
  local widest = 0
  for _, item in ipairs(list) do widest = math.max(widest, #name_of(item)) end
  for _, item in ipairs(list) do
    local text = item.text ~= "" and "  " .. item.text or ""
    out[#out + 1] = ("  %-" .. widest .. "s  %s%s"):format(name_of(item), item.type, text)
  end
end

local LONGEST = 160 -- of a summary; a longer sentence is cut at its colon

--- The first sentence, for lists; empty if there is none.
local function summary(entry)
  local text = table.concat(entry.text, " ")
  if text == "" then return "" end
  local sentence = text:match "^(.-)[.;]%s" or text:gsub("[.;]$", "")
  if #sentence > LONGEST then sentence = sentence:match "^(.-):%s" or sentence end
  return sentence .. "."
end

local function names_with(prefix)
  local _, all = entries()
  local out = {}
  for _, entry in ipairs(all) do
    if entry.name:sub(1, #prefix) == prefix and entry.name ~= prefix then out[#out + 1] = entry end
  end
  return out
end

--- One line per entry.
local function listing(list, out)
  for _, entry in ipairs(list) do
    out[#out + 1] = "  " .. entry.signature
    local text = summary(entry)
    if text ~= "" then out[#out + 1] = "      " .. text end
  end
end

local function entry_text(entry)
  local out = { entry.signature }
  for _, line in ipairs(annotations.paragraphs(entry.text)) do out[#out + 1] = "  " .. line end
  if #entry.params > 0 then
    out[#out + 1] = ""
    described(entry.params, out, function(item) return item.name end)
  end
  local remarks = {}
  for _, result in ipairs(entry.returns) do
    if result.text ~= "" then remarks[#remarks + 1] = { name = "returns", type = result.type, text = result.text } end
  end
  described(remarks, out, function(item) return item.name end)
  if #entry.fields > 0 then
    out[#out + 1] = ""
    described(entry.fields, out, function(item) return "." .. item.name end)
  end
  if examples[entry.name] then
    out[#out + 1] = ""
    out[#out + 1] = "example:"
    out[#out + 1] = "  " .. examples[entry.name]
  end
  if entry.kind == "class" then
    local methods = names_with(entry.name .. ":")
    if #methods > 0 then out[#out + 1] = "" end
    listing(methods, out)
  end
  return table.concat(out, "\n")
end

---All public names that help knows, in the order of the annotations.
---@return string[]
function help.names()
  local _, all = entries()
  local out = {}
  for _, entry in ipairs(all) do out[#out + 1] = entry.name end
  return out
end

---The names of all public functions and methods, in the order of the annotations.
---@return string[]
function help.functions()
  local _, all = entries()
  local out = {}
  for _, entry in ipairs(all) do
    if entry.kind == "function" then out[#out + 1] = entry.name end
  end
  return out
end

---A one-sentence description of a name; empty if it has none.
---@param name string
function help.summary(name) return summary(entries()[name]) end

---Whether a name is for cbk's own scripts only.
---@param name string
function help.is_private(name)
  local entry = entries()[name]
  return entry ~= nil and entry.is_private == true
end

---Names of the fields and methods of a class, for completion.
---@param class string
---@return string[] fields, string[] methods
function help.members(class)
  local fields, methods = {}, {}
  local entry = entries()[class]
  for _, field in ipairs(entry and entry.fields or {}) do fields[#fields + 1] = field.name end
  for _, method in ipairs(names_with(class .. ":")) do methods[#methods + 1] = method.name:match ":(.*)$" end
  return fields, methods
end

---The class that a function or method returns, or nil.
---@param name string  "cbk.open", "Tensor:reshape"
---@return string|nil
function help.result_class(name)
  local entry = entries()[name]
  local first = entry and entry.returns[1]
  local class = first and entries()[first.type]
  return class and class.kind == "class" and class.name or nil
end

--- Entries whose last part is `name` ("stats" finds Tensor:stats).
local function by_last_part(name)
  local _, all = entries()
  local out = {}
  for _, entry in ipairs(all) do
    if entry.name:match "([%w_]+)$" == name then out[#out + 1] = entry end
  end
  return out
end

---Help about a name; or nil, and the nearest names.
---@param name string  "cbk.open", "Tensor", "Tensor:stats", "stats", "cbk.fs"
---@return string|nil text, string[] nearest
function help.text(name)
  if name:find "^c[sb]torch%f[^%w_]" then return require("cstorch.help").text(name) end
  local found = entries()[name] or entries()["cbk." .. name] or entries()[name:match "^cbk%.(%u%w*)$" or ""] -- a type
  if found and found.kind ~= "value" then return entry_text(found), {} end
  local below = names_with((found and found.name or name) .. ".")
  if #below == 0 then below = names_with("cbk." .. name .. ".") end
  if #below > 0 then
    local out = found and { entry_text(found) } or { name }
    listing(below, out)
    return table.concat(out, "\n"), {}
  end
  if found then return entry_text(found), {} end
  local same = by_last_part(name)
  if #same == 1 then return entry_text(same[1]), {} end
  if #same > 1 then
    local out = {}
    listing(same, out)
    return table.concat(out, "\n"), {}
  end
  return nil, cbk.nearest(name, help.names(), 5)
end

return help
