-- The file and line in which a rule or a function of a converter is defined.

local cbk = require "cbk"

local position = {}

local root = debug.getinfo(1, "S").source:match "^@(.*)converters/notation/[^/]*$" or ""
position.root = root -- the folder of cbk's own converters

local readable -- the files that may be read for messages, besides cbk's own; nil: all

---Restricts what is read for messages to such files: a sandboxed converter may claim any origin for its rules.
---@param path string
function position.restrict(path)
  readable = readable or {}
  readable[path] = true
end

local border = "@" .. root .. "converters/notation/border.lua"

---The file and line of the caller in a converter's file. Functions that stand between a sandboxed file and the library do not count.
---@param level integer   as for debug.getinfo when called from here
---@return string source, integer line
function position.here(level)
  local at = debug.getinfo(level, "Sl")
  while at and (at.source == border or at.what == "C") do
    level = level + 1
    at = debug.getinfo(level, "Sl")
  end
  if not at then return "?", 0 end
  return at.source:gsub("^@", ""), at.currentline
end

---Raises an error of a converter's file.
---@param source string
---@param line integer
---@param format string   as in string.format, with the values after it
function position.fail(source, line, format, ...)
  cbk.fail("converter", format:format(...), { context = { ("%s:%d"):format(source, line) }, file = source })
end

local lines_of = {}

local function lines(path)
  local is_own = path:sub(1, #root + 11) == root .. "converters/" and not path:find("..", 1, true)
  if readable and not readable[path] and not is_own then return nil end
  if lines_of[path] == nil then
    local fine, text = pcall(cbk.fs.read, path)
    lines_of[path] = false
    if fine then
      lines_of[path] = {}
      for line in (text .. "\n"):gmatch "(.-)\n" do table.insert(lines_of[path], line) end
    end
  end
  return lines_of[path]
end

---A path for messages: cbk's own files begin with "converters/".
---@param path string
function position.file(path) return root ~= "" and path:sub(1, #root) == root and path:sub(#root + 1) or path end

local function shown(source, line) return ("%s:%d"):format(position.file(source), line) end

---The first line from `start` on with all the names in quotes.
local function line_with(text, start, names)
  for line = start, #text do
    local has_all = true
    for _, name in ipairs(names) do has_all = has_all and text[line]:find('"' .. name .. '"', 1, true) ~= nil end
    if has_all then return line end
  end
end

---The files that may have the pattern of a table made by a function: the file that called it, and those it requires.
local function files_of(source)
  local out = { source }
  for _, line in ipairs(lines(source) or {}) do
    local module = line:match 'require%(?%s*"(converters%.[%w_.]+)"'
    local is_table = module and not module:find "%.engine%." and not module:find "%.vocabulary%."
    if is_table then out[#out + 1] = root .. module:gsub("%.", "/") .. ".lua" end
  end
  return out
end

---"converters/llama.lua:26": the line that has the rule's patterns, else that of its table.
---@param rule Rule
---@return string
function position.of(rule)
  rule = rule.base or rule
  local origin = rule.origin
  local names = origin.names
  if rule.kind then return shown(origin.source, origin.line) end
  for _, wanted in ipairs { names, { names[1] }, { names[2] } } do
    local text = lines(origin.source)
    local first = text and text[origin.line] or ""
    local is_table = first:find("rules.keys", 1, true) or first:find("fields.config", 1, true)
    local line = is_table and line_with(text, origin.line, wanted)
    if line then return shown(origin.source, line) end
    for _, source in ipairs(files_of(origin.source)) do
      line = lines(source) and line_with(lines(source), 1, wanted)
      if line then return shown(source, line) end
    end
  end
  return shown(origin.source, origin.line)
end

---The first line with an entry's names from that of its table on, else that of the table.
---@param source string
---@param line integer
---@param names string[]
---@return string
function position.of_entry(source, line, names)
  return shown(source, #names > 0 and lines(source) and line_with(lines(source), line, names) or line)
end

---The line of the table with these names; the line of its field, if a later one has it.
---@param source string
---@param names string[]
---@param count integer    number of tables with these names, up to this one
---@param field? string
---@return string
function position.of_table(source, names, count, field)
  local text, line = lines(source) or {}, nil
  for _ = 1, count do line = line_with(text, (line or 0) + 1, names) or line end
  for further = line or math.huge, field and #text or 0 do
    if further > line and text[further]:find '"cs%-%d' then break end -- another table
    if text[further]:find("%f[%w_]" .. field:gsub("%p", "%%%0") .. '%f[^%w_]"?%]?%s*=') then return shown(source, further) end
  end
  return line and shown(source, line) or position.file(source)
end

local behind = setmetatable({}, { __mode = "k" }) -- functions of a sandbox, by those that stand for them

---@param guard function   what the library calls
---@param f function       whose place is looked up
function position.stand_for(guard, f) behind[guard] = f end

---@param f function
---@return string
function position.of_function(f)
  local at = debug.getinfo(behind[f] or f, "S")
  return shown(at.source:gsub("^@", ""), at.linedefined)
end

return position
