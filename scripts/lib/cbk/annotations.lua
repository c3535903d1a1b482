-- Reads the annotations (LuaCATS) of a Lua file: classes with their fields, functions, and values of a module's table.

local cbk = require "cbk"

local annotations = {}

---@class Annotation
---@field name string      "cbk.open", "Tensor:stats", "Tensor"
---@field kind "function"|"class"|"value"
---@field signature string
---@field text string[]    the description, line by line
---@field params table[]   { name, type, text }
---@field returns table[]  { type, text }
---@field fields table[]   { name, type, text }
---@field parent? string   the class that a class extends
---@field is_private? boolean
---@field is_documented boolean

--- "string|nil  words" → "string|nil", "words". A type may hold spaces inside its brackets, after ":" and after ",".
local function split_type(text)
  local depth, at = 0, 1
  while at <= #text do
    local c = text:sub(at, at)
    if c:find "[%(%{%[<]" then depth = depth + 1 end
    if c:find "[%)%}%]>]" then depth = depth - 1 end
    if c == " " and depth <= 0 and not text:sub(1, at - 1):find "[:,|]$" then break end
    at = at + 1
  end
  local rest = text:sub(at + 1):gsub("^%s+", ""):gsub("^[#@]%s*", "")
  return text:sub(1, at - 1), rest
end

local function new_block() return { text = {}, params = {}, returns = {}, fields = {} } end

local lists = { param = "params", field = "fields" }

local function add_annotation(block, tag, rest)
  block.last = nil
  if tag == "field" and rest:find "^%[" then return end -- "any name", for editors; the text describes it
  if lists[tag] then
    local name, more = rest:match "^(%S+)%s*(.*)$"
    local kind, text = split_type(more or "")
    block.last = { name = name, type = kind, text = text }
    table.insert(block[lists[tag]], block.last)
  elseif tag == "return" then
    local kind, text = split_type(rest)
    block.last = { type = kind, text = text }
    table.insert(block.returns, block.last)
  elseif tag == "class" then
    local name, text = rest:match "^([%w_.]+)%s*(.*)$"
    block.class, block.parent = name, text:match "^:%s*([%w_.]+)"
    text = text:gsub("^:%s*[%w_.]*%s*", "")
    if text ~= "" then table.insert(block.text, 1, text) end
  elseif tag == "private" then
    block.is_private = true
  end
end

--- A line below an annotation that begins with two spaces continues it.
local function add_text(block, text)
  local more = text:match "^%s%s+(%S.*)$"
  if block.last and more then
    block.last.text = block.last.text .. (block.last.text == "" and "" or " ") .. more
  else
    table.insert(block.text, text)
  end
end

local function entry_of(block, kind, name, signature)
  return { name = name, kind = kind, signature = signature, text = block.text, params = block.params, returns = block.returns,
    fields = block.fields, parent = block.parent, is_private = block.is_private,
    is_documented = #block.text + #block.params + #block.returns > 0 }
end

local function function_entry(block, name, arguments)
  local optional = {}
  for _, param in ipairs(block.params) do
    if param.name:sub(-1) == "?" then optional[param.name:sub(1, -2)] = true end
  end
  local shown = arguments:gsub("[%w_]+", function(argument) return optional[argument] and argument .. "?" or argument end)
  local types = {}
  for _, result in ipairs(block.returns) do types[#types + 1] = result.type end
  local signature = ("%s(%s)"):format(name, shown)
  if #types > 0 then signature = signature .. " → " .. table.concat(types, ", ") end
  return entry_of(block, "function", name, signature)
end

---Joins lines of a description: one that ends in the middle of a sentence continues in the next.
---@param lines string[]
---@return string[]
function annotations.paragraphs(lines)
  local out, goes_on = {}, false
  for _, line in ipairs(lines) do
    if goes_on then out[#out] = out[#out] .. " " .. line else out[#out + 1] = line end
    goes_on = line ~= "" and not line:find "[.:;]$"
  end
  return out
end

---The annotations of a file in their order.
---@param path string
---@param public? table<string, string>   public names of the file's local tables: { fs = "cbk.fs" }
---@return Annotation[]
function annotations.read(path, public)
  local out, block = {}, new_block()
  local function end_class()
    if block.class then out[#out + 1] = entry_of(block, "class", block.class, block.class) end
  end
  for line in (cbk.fs.read(path) .. "\n"):gmatch "(.-)\r?\n" do
    local comment = line:match "^%-%-%-%s?(.*)$"
    local owner, separator, method, arguments, tail = line:match "^function ([%w_.]+)([.:])([%w_]+)%((.-)%)(.*)$"
    local value = line:match "^([%w_]+%.[%w_.]+) = "
    if comment then
      local tag, rest = comment:match "^@(%w+)%s*(.*)$"
      if tag == "class" and block.class then -- two classes in a row
        end_class()
        block = new_block()
      end
      if tag then add_annotation(block, tag, rest) else add_text(block, comment) end
    else
      end_class()
      if owner then
        local remark = tail:match "%-%-%s*(.+)$"
        if remark and #block.text == 0 then block.text = { remark } end
        out[#out + 1] = function_entry(block, (public and public[owner] or owner) .. separator .. method, arguments)
      elseif value and not block.class then
        out[#out + 1] = entry_of(block, "value", value, value)
      end
      block = new_block()
    end
  end
  return out
end

return annotations
