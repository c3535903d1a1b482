-- Completion for the REPL: Lua names, fields and methods by raw access, file names and tensor keys inside strings, `:`
-- commands. It uses only data in memory: it calls no metamethod of a user's table and reads no tensor.

local cbk = require "cbk"
local help = require "cbk.help"

local complete = {}

local MAX_CANDIDATES = 2000

--- The Lua-visible name of a native type, or nil.
local function native_type(value)
  if type(value) ~= "userdata" then return nil end
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__name") or nil
end

local TREES = { Dict = true, List = true, Checkpoint = true, Output = true }

--- The parts of a module of cstorch, which are loaded on first use; nil for other tables.
local function parts_of(value)
  local meta = debug.getmetatable(value)
  local name = type(meta) == "table" and rawget(meta, "namespace")
  if not name or rawget(package.loaded, name) ~= value then return nil end
  return rawget(meta, "parts") or {}
end

local function is_name(text) return type(text) == "string" and text:find "^[%a_][%w_]*$" ~= nil end

--- Calls visit(name, member) for an object of cstorch: parts of a module, methods of its classes; not for its own fields.
local function each_inherited(value, visit)
  local meta = debug.getmetatable(value)
  local class = type(meta) == "table" and rawget(meta, "class") or nil
  for _, registry in ipairs { "_parameters", "_buffers", "_modules" } do
    local entries = class and rawget(value, registry)
    for name, member in next, type(entries) == "table" and entries or {} do visit(name, member) end
  end
  while type(class) == "table" do
    for name, member in next, class do
      if type(member) == "function" and is_name(name) and name:sub(1, 1) ~= "_" then visit(name, member) end
    end
    class = rawget(class, "super")
  end
end

--- `value[name]` without calling a user's code.
local function raw_field(value, name)
  if type(value) == "table" then
    local field, parts = rawget(value, name), parts_of(value)
    if field == nil and parts and parts[name] then return value[name] end
    if field ~= nil then return field end
    each_inherited(value, function(key, member)
      if key == name and field == nil then field = member end
    end)
    return field
  end
  if TREES[native_type(value)] then
    local ok, field = pcall(function() return value[name] end)
    return ok and field or nil
  end
  return nil
end

--- The value of "a.b.c" in the environment of the session, or nil.
local function resolve(chain, env)
  local value
  for part in chain:gmatch "[^.]+" do
    if value == nil then
      value = rawget(env, part)
      if value == nil then value = rawget(_G, part) end
    else
      value = raw_field(value, part)
    end
    if value == nil then return nil end
  end
  return value
end

--- Names below a value that may follow "." or ":", with "(" after functions.
local function members(value, separator)
  local out = {}
  local function add(name, is_function)
    if is_name(name) and (separator == "." or is_function) then out[#out + 1] = is_function and name .. "(" or name end
  end
  if type(value) == "table" then
    for key, item in next, value do
      if value ~= cbk or not help.is_private("cbk." .. tostring(key)) then add(key, type(item) == "function") end
    end
    for name in pairs(parts_of(value) or {}) do add(name, type(raw_field(value, name)) == "function") end
    each_inherited(value, function(name, member) add(name, type(member) == "function") end)
    if value == cbk then
      for _, name in ipairs(help.names()) do
        local module = name:match "^cbk%.([%w_]+)%."
        if module and rawget(cbk, module) == nil then add(module, false) end
      end
    end
    return out
  end
  if type(value) == "string" then
    for key in next, string do add(key, true) end
    return separator == ":" and out or {}
  end
  local class = native_type(value)
  if not class then return out end
  local methods = rawget(debug.getmetatable(value), "methods")
  if separator == ":" and type(methods) == "table" then
    for key in next, methods do add(key, true) end
  end
  if separator == "." then
    for _, field in ipairs((help.members(class))) do add(field, false) end
    if class == "Dict" then
      for _, key in ipairs(cbk.keys(value)) do add(key, false) end
    end
  end
  return out
end

--- Sorted candidates that begin with `prefix`, each once.
local function matching(names, prefix)
  local seen, out = {}, {}
  for _, name in ipairs(names) do
    if name:sub(1, #prefix) == prefix and not seen[name] then
      seen[name] = true
      out[#out + 1] = name
    end
  end
  table.sort(out)
  return out
end

--- The text between the quotes of a Lua string for `text`. Characters that are unsafe on a terminal are escaped.
local function literal(text) return (cbk.shown((text:gsub("[\\\"']", "\\%0"):gsub("\n", "\\n"):gsub("\t", "\\t")))) end

--- The current text of an open Lua string, and a function that spells texts which begin with it. An escape at the end may be incomplete.
local function read_literal(typed, quote)
  for cut = 0, math.min(3, #typed) do
    local whole = typed:sub(1, #typed - cut)
    local chunk = loadstring("return " .. quote .. whole .. quote)
    local text = chunk and chunk()
    if text then
      return text, function(longer)
        local spelled = whole .. literal(longer:sub(#text + 1))
        return spelled:sub(1, #typed) == typed and spelled or nil
      end
    end
  end
  return typed, literal
end

local class_of

--- The class of the result of the call that `text` ends with, without its arguments.
local function class_of_call(text, env)
  local object, method = text:match "^(.*):%s*([%a_][%w_]*)%s*$"
  if object then
    local class = class_of(object, env)
    return class and help.result_class(class .. ":" .. method)
  end
  return help.result_class(text:match "([%a_][%w_.]*)%s*$" or "")
end

--- The class of the expression at the end of `text`, as far as it is known without running anything: from variables, keys
--- of trees, and the annotations of calls.
function class_of(text, env)
  local before, arguments = text:match "^(.-)%s*(%b())$"
  if not before then before, arguments = text:match "^(.-)%s*(%b{})$" end
  if before then return class_of_call(before, env) end
  local quote, content
  before, quote, content = text:match "^(.-)%[%s*([\"'])(.-)%2%s*%]$"
  if not before then before, quote, content = text:match "^(.-)%s*([\"'])([^\"']*)%2$" end
  if before and arguments == nil and text:sub(-1) ~= "]" then return class_of_call(before, env) end
  local value = resolve((before or text):match "[%a_][%w_.]*$" or "", env)
  if before and TREES[native_type(value)] then
    local found, item = pcall(function() return value[read_literal(content, quote)] end)
    value = found and item or nil
  end
  return native_type(value)
end

local function class_members(class, separator)
  local fields, methods = help.members(class)
  if separator == "." then return fields end
  for i, name in ipairs(methods) do methods[i] = name .. "(" end
  return methods
end

local function lua_names(text, env)
  local expression, dot, start = text:match "^(.*[%]%)}\"'])%s*([.:])([%w_]*)$"
  if expression then
    local class = class_of(expression, env)
    return #text - #start, class and matching(class_members(class, dot), start) or {}
  end
  local chain, separator, prefix = text:match "([%a_][%w_.]*)([.:])([%w_]*)$"
  if chain then
    -- The text before the chain may make it part of a longer expression: f().x
    if text:sub(1, #text - #chain - #separator - #prefix):find "[%]%)\"'%.:]$" then return #text, {} end
    local value = resolve(chain, env)
    if value == nil then return #text, {} end
    return #text - #prefix, matching(members(value, separator), prefix)
  end
  prefix = text:match "[%a_][%w_]*$" or ""
  if prefix == "" or text:sub(1, #text - #prefix):find "[%]%)%d]%s*[.:]$" then return #text, {} end
  local names = {}
  for _, scope in ipairs { env, _G } do
    for key, value in next, scope do
      if is_name(key) then names[#names + 1] = type(value) == "function" and key .. "(" or key end
    end
  end
  return #text - #prefix, matching(names, prefix)
end

-- --- inside strings

--- The text of the string that is open at the end, and the text before its quote; nil outside of strings.
local function open_string(text)
  local quote, start
  local at = 1
  while at <= #text do
    local c = text:sub(at, at)
    if quote then
      if c == "\\" then at = at + 1 elseif c == quote then quote = nil end
    elseif c == '"' or c == "'" then
      quote, start = c, at
    elseif c == "-" and text:sub(at, at + 1) == "--" then
      return nil
    end
    at = at + 1
  end
  if quote then return text:sub(start + 1), text:sub(1, start - 1), quote end
end

--- Outside of Lua strings control characters cannot be typed, so names with them are not suggested.
local function as_it_is(text) return cbk.shown(text) == text and text or nil end

--- File names that start with `typed`, spelt by `spell`; folders end with "/".
local function files(typed, spell)
  local folder, name = typed:match "^(.*/)([^/]*)$"
  if not folder then folder, name = "", typed end
  local place = folder == "" and "." or folder:gsub("^~/", (os.getenv "HOME" or "~") .. "/")
  local ok, names = pcall(cbk.fs.list, place)
  local out = {}
  for _, entry in ipairs(ok and names or {}) do
    local hidden = entry:sub(1, 1) == "." and name:sub(1, 1) ~= "."
    if entry:sub(1, #name) == name and not hidden then
      out[#out + 1] = spell(folder .. entry .. (cbk.fs.is_dir(cbk.fs.join(place, entry)) and "/" or ""))
    end
  end
  return out
end

--- Keys below a tree that start with `typed`, up to the next dot, as a shell shows folders; `ending` follows whole keys.
local function keys(tree, typed, spell, ending)
  local root = native_type(tree) == "Checkpoint" and tree.root or tree
  local seen, out, level = {}, {}, nil
  for path in cbk.leaves(root) do
    if path:sub(1, #typed) == typed then
      local dot = path:find(".", #typed + 1, true)
      local part = dot and path:sub(1, dot) or path
      local candidate = spell(part)
      if candidate and not dot then candidate = candidate .. ending end
      if candidate and not seen[candidate] and #out < MAX_CANDIDATES then
        seen[candidate] = true
        out[#out + 1], level = candidate, dot and part
      end
    end
  end
  -- A level with a single name is no choice: continue with the next one.
  if #out == 1 and level and #level > #typed then
    local deeper = keys(root, level, spell, ending)
    if #deeper == 1 then return deeper end
  end
  return out
end

local function inside_string(typed, before, quote, env)
  local chain = before:match "([%a_][%w_.]*)%s*%[%s*$"
  local method = chain == nil
  chain = chain or before:match "([%a_][%w_.]*):[%a_]+%s*%(%s*$" or before:match "cbk%.%a+%s*%(%s*([%a_][%w_.]*)%s*,%s*$"
  local tree = chain and resolve(chain, env)
  local text, spell = read_literal(typed, quote)
  if tree and TREES[native_type(tree)] then
    return keys(tree, text, spell, method and quote or quote .. "]")
  end
  return files(text, spell)
end

-- --- commands

local function after_command(command, rest, env, commands)
  if command.argument == "file" then return files(rest, as_it_is) end
  if command.argument == "key" then
    local tree = rawget(env, "ckpt")
    return tree and keys(tree, rest, as_it_is, "") or {}
  end
  if command.argument == "name" then
    local names = help.names()
    for name in pairs(commands) do names[#names + 1] = ":" .. name end
    local exact = matching(names, rest)
    return #exact > 0 and exact or matching(names, "cbk." .. rest)
  end
  return nil
end

---The completions at the cursor: the byte before the replaced part, and the candidates.
---@param line string
---@param cursor integer  bytes before the cursor
---@param env table       the globals of the session
---@param commands table<string, { argument: string|nil }>
---@return integer begin, string[] candidates
function complete.at(line, cursor, env, commands)
  local text = line:sub(1, cursor)
  local prefix = text:match "^%s*:(%a*!?)$"
  if prefix then
    local names = {}
    for name in pairs(commands) do names[#names + 1] = name end
    return #text - #prefix, matching(names, prefix)
  end
  local name, rest = text:match "^%s*:(%a+!?)%s+(.*)$"
  if not name then rest = text:match "^%s*%?%s*(.*)$" end
  local command = commands[name or rest and "help"]
  local found = command and after_command(command, rest, env, commands)
  if found then return #text - #rest, found end
  local typed, before, quote = open_string(text)
  if typed then return #text - #typed, inside_string(typed, before, quote, env) end
  return lua_names(text, env)
end

return complete
