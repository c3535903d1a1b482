-- Lua's own errors in plain words, with suggestions.
local cbk = require "cbk"
local naming = require "cbk.naming"
local typed_mistakes = require "cbk.typed_mistakes"

--- "; did you mean 'cbk.open'?" if cbk has a function `name`.
local function meant(name)
  return naming.suggestion(type(rawget(cbk, name)) == "function" and "cbk." .. name)
end

local NAMES = { userdata = "a value of cbk", ["function"] = "a function", table = "a table", number = "a number", string = "a string",
  boolean = "a boolean", cdata = "a cdata value", thread = "a coroutine" }

local function kind(name) return NAMES[name] or name end

local LOOP = "write 'for key, value in cbk.items(x) do' (x.root of a checkpoint)"
local PLAIN_TABLES = {
  next = LOOP, pairs = LOOP, ipairs = LOOP, insert = "use cbk.insert(list, position, value) or list[#list + 1] = value",
  remove = "use cbk.remove(list, position)", concat = "cbk.totable(list) makes one", sort = "cbk.totable(list) makes one",
  unpack = "cbk.totable(list) makes one", maxn = "#list is its length",
}

--- The name of a module like `name` in one of the folders where it was looked for.
local function near_module(name, tried)
  local place, last = name:match "^(.*%.)([^.]+)$"
  if not place then return nil end
  for folder in tried:gmatch "no file '([^'\n]*)/[^/'\n]*'" do
    local names = {}
    for _, file in ipairs(cbk.fs.is_dir(folder) and cbk.fs.list(folder) or {}) do
      names[#names + 1] = file:match "^([%w_]+)%.lua$" or file:match "^[%w_]+$"
    end
    local near = cbk.nearest(last, names, 1)[1]
    if near then return place .. near end
  end
end

--- Patterns of Lua's messages, each with a function of its captures that returns the new text (nil: keep Lua's text).
local MISTAKES = {
  { "attempt to call method '([^']*)' %(a nil value%)", function(name)
    local is_ours = meant(name) ~= ""
    return ("there is no method '%s'%s"):format(name, is_ours and
      ("; what is in a Dict or a List is data: use the function cbk.%s(x)"):format(name) or "")
  end },
  { "attempt to call %a+ '([^']*)' %(a nil value%)", function(name) return ("there is no function '%s'%s"):format(name, meant(name)) end },
  { "attempt to call method '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s, not a method; read it with a dot and without ()"):format(name, kind(type))
  end },
  { "attempt to call %a+ '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s, not a function"):format(name, kind(type))
  end },
  { "attempt to call a (%a+) value", function(type) return ("%s is not a function"):format(kind(type)) end },
  { "attempt to index %a+ '([^']*)' %(a function value%)", function(name)
    return ("'%s' is a function; call it to get what it gives, as in x:%s()"):format(name, name)
  end },
  { "attempt to index field '([^']*)' %(a nil value%)", function(name)
    return ("'%s' is nil, which has no fields; a key with dots is one name, as in x[\"a.b\"]"):format(name)
  end },
  { "attempt to index %a+ '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s, which has no fields"):format(name, kind(type))
  end },
  { "attempt to index a nil value", function() return "what was read or called gave nil, which has no fields" end },
  { "attempt to index a (%a+) value", function(type) return ("%s has no fields"):format(kind(type)) end },
  { "attempt to perform arithmetic on %a+ '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s, and arithmetic needs numbers or tensors"):format(name, kind(type))
  end },
  { "attempt to perform arithmetic on a (%a+) value", function(type)
    return ("arithmetic needs numbers or tensors, not %s"):format(kind(type))
  end },
  { "attempt to concatenate %a+ '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s; '..' joins strings and numbers, and tostring(x) gives a string"):format(name, kind(type))
  end },
  { "attempt to get length of %a+ '([^']*)' %(a (%a+) value%)", function(name, type)
    return ("'%s' is %s, which has no length"):format(name, kind(type))
  end },
  { "attempt to compare (%a+) with (%a+)", function(a, b)
    local is_of_cbk = a == "userdata" or b == "userdata"
    local advice = "; of tensors, x:lt(y) compares those of cstorch, and t:item() and t:stats() give numbers of a checkpoint's"
    return ("cannot compare %s with %s%s"):format(kind(a), kind(b), is_of_cbk and advice or "")
  end },
  { "bad argument #1 to '(%a+)' %(table expected, got userdata%)", function(name)
    local advice = PLAIN_TABLES[name]
    return advice and ("'%s' takes plain Lua tables only; %s"):format(name, advice)
  end },
  -- A tail call has no name in messages.
  { "bad argument #(%d+) to '%?' %(table expected, got userdata%)", function(position)
    return ("argument #%s should be a plain Lua table; cbk.totable(x) makes one of a Dict or a List"):format(position)
  end },
  { "bad argument #(%d+) to '%?' %((%w+) expected, got (%w+)%)", function(position, expected, found)
    return ("argument #%s should be %s, but is %s"):format(position, kind(expected), kind(found))
  end },
  { "module '([^']*)' not found:(.*)", function(name, tried)
    return ("there is no module '%s' in the folders of package.path%s"):format(name, naming.suggestion(near_module(name, tried)))
  end },
}

---The message with Lua's terms replaced; its place at the beginning stays.
---@param message string
---@param code? string   what was typed, if that is known
---@param env? table     its globals (default: _G)
---@return string
return function(message, code, env)
  local exact = code and typed_mistakes.text(message, code, env or _G)
  if exact then return exact end
  for _, mistake in ipairs(MISTAKES) do
    local text, count = message:gsub(mistake[1], mistake[2], 1)
    if count > 0 then return text end
  end
  return message
end
