-- The border of a sandbox. Its code sees the library's tables as read-only views. What it hands over is copied into plain data then, so
-- that it cannot change later; its functions run within limits, and fail with errors that have a text.

local cbk = require "cbk"
local limits = require "cbk.limits"
local naming = require "cbk.naming"
local position = require "converters.notation.position"
local visible = require "converters.notation.visible"

local set = naming.set

local border = {}

local MOST_LEVELS = 200 -- of tables in tables

local originals = setmetatable({}, { __mode = "k" })  -- of views
local views = setmetatable({}, { __mode = "kv" })     -- of the library's tables
local wrappers = setmetatable({}, { __mode = "kv" })  -- what the sandbox has of the library's functions
local wrapped = setmetatable({}, { __mode = "k" })    -- the library's functions behind them
local guards = setmetatable({}, { __mode = "kv" })    -- what the library has of the sandbox's functions
local guarded = setmetatable({}, { __mode = "k" })    -- the sandbox's functions behind them
local results = setmetatable({}, { __mode = "k" })    -- of the library's functions, behind the sandbox's own copies
local arguments = setmetatable({}, { __mode = "k" })  -- what the library's functions get for its own tables, and for none but these

local to_sandbox, to_library

-- --- what is refused

local function refuse_assignment(_, name)
  local source, line = position.here(3)
  position.fail(source, line, "cannot assign to '%s': the table is not the converter's own; copy it (rules.variant) and change the copy",
    tostring(name))
end

-- --- several values

local function pack(...) return { n = select("#", ...), ... } end

---@param convert fun(value: any): any
local function each(convert, ...)
  local list = pack(...)
  for i = 1, list.n do list[i] = convert(list[i]) end
  return unpack(list, 1, list.n)
end

-- --- from the library to the sandbox

local CONTAINERS = set "dict ordereddict defaultdict counter list tuple set frozenset deque torch.Size"

---A Dict or List that a table of the library has, as a copy: it is no view, and what gets it could change it.
local function without_container(value)
  local is_container = type(value) == "userdata" and not originals[value] and CONTAINERS[cbk.kind(value)]
  return is_container and cbk.deep_copy(value) or value
end

---What a call gives away: a list or record of the sandbox's own, with views of what is in it.
local function handed(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil or views[value] then return to_sandbox(value) end
  local out = {}
  for name, inner in next, value do
    out[to_sandbox(name)] = to_sandbox(without_container(inner))
  end
  results[out] = value
  return out
end

local takers = setmetatable({}, { __mode = "k" })       -- true: the function takes objects of these metatables; false: no object; nil: any
local may_be_taken = setmetatable({}, { __mode = "k" })

---Lets functions of modules take objects with a metatable.
---@param metatable table
function border.allow(metatable) may_be_taken[metatable] = true end

local function takes(f, metatable) return takers[f] == nil or takers[f] and may_be_taken[metatable] end

local function wrapper_of(f)
  local wrapper = wrappers[f]
  if not wrapper then
    local function convert(value) return to_library(value, f) end
    wrapper = function(...) return each(handed, f(each(convert, ...))) end
    wrappers[f], wrapped[wrapper] = wrapper, f
  end
  return wrapper
end

---A method, which takes no other object than one of its kind.
local function method_of(f, metatable)
  local wrapper = wrappers[f]
  if not wrapper then
    wrapper = function(self, ...)
      local original = originals[self]
      if original == nil or getmetatable(original) ~= metatable then error("a method needs its own object: write object:method(…)", 2) end
      return each(handed, f(original, each(to_library, ...)))
    end
    wrappers[f], wrapped[wrapper] = wrapper, f
  end
  return wrapper
end

---What a view has under a name.
local function inside(original, name)
  local metatable = getmetatable(original)
  if visible.is_hidden(original, name) then
    if not visible.is_module(original) then return nil end
    local source, line = position.here(3)
    position.fail(source, line, "'%s' is a function of the library's own, not for converters", tostring(name))
  end
  local value = original[name]
  if type(value) == "function" and visible.is_shown(metatable) and rawget(original, name) == nil then return method_of(value, metatable) end
  local is_constant = visible.is_plain(original)
  return to_sandbox(is_constant and without_container(value) or value)
end

local of_views = {
  __index = function(view, name) return inside(originals[view], originals[name] or name) end,
  __newindex = refuse_assignment,
  __len = function(view) return #originals[view] end,
  __tostring = function(view) return tostring(originals[view]) end,
  __call = function(view, ...) return each(handed, originals[view](each(to_library, ...))) end,
  __metatable = false,
}

local first = newproxy(true)
for name, value in pairs(of_views) do debug.getmetatable(first)[name] = value end

function to_sandbox(value)
  local kind = type(value)
  if kind == "function" then
    if wrapped[value] then error "a function of the sandbox's own came back as one of the library's" end
    return guarded[value] or wrapper_of(value)
  end
  if kind ~= "table" then return value end
  local view = views[value]
  if not view then
    view = newproxy(first)
    views[value], originals[view] = view, value
  end
  return view
end

---A module as the sandbox sees it.
---@param module any
---@param own? { hidden: string, changing: string }   names that it does not see, and of functions that change their arguments
function border.module(module, own)
  if type(module) ~= "table" then return to_sandbox(module) end
  visible.mark_module(module)
  if own then
    visible.hide(module, set(own.hidden))
    local changing = set(own.changing)
    for name, value in next, module do
      if type(value) == "function" then takers[value] = not changing[name] end
    end
  end
  return to_sandbox(module)
end

-- --- from the sandbox to the library

local function check_level(level)
  if level > MOST_LEVELS then cbk.fail("converter", ("the converter nests tables more than %d deep"):format(MOST_LEVELS)) end
end

---@class Crossing   What crosses the border at once: tables in it that are one stay one.
---@field seen table<table, table>   copies
---@field is_final boolean           it is data from now on, of which nobody else has a part
---@field is_native? boolean         it is for a native function, which may give it back: functions stay the sandbox's
---@field taker? function            the library's function that it is for

---A copy of the library's own table: what gets it may change it. Among arguments it is always the same copy.
---@param crossing Crossing
local function without_owner(value, crossing, level)
  if crossing.is_native and type(value) == "function" then return to_sandbox(value) end
  if crossing.is_native and type(value) == "table" and not visible.is_plain(value) then
    cbk.fail("converter", "an object of the library is no value for a function of `cbk`: pass its fields")
  end
  if crossing.taker and type(value) == "table" and not visible.is_plain(value) and not takes(crossing.taker, getmetatable(value)) then
    cbk.fail("converter", "an object of the library, such as `at` or a class, is not for this function: pass its fields")
  end
  if not visible.is_plain(value) then return without_container(value) end
  local is_argument = not (crossing.is_final or crossing.is_native)
  local known = crossing.seen[value] or is_argument and (arguments[value] or arguments[value] == false and value)
  if known then return known end
  check_level(level)
  local out = {}
  crossing.seen[value] = out
  if is_argument then arguments[value], arguments[out] = out, false end
  for name, inner in next, value do
    if not visible.is_hidden(value, name) then out[name] = without_owner(inner, crossing, level + 1) end
  end
  return out
end

---Whether a sandbox's copy of a result is as it was.
local function is_unchanged(own, result)
  for name, value in next, result do
    if own[to_sandbox(name)] ~= to_sandbox(value) then return false end
  end
  for name in next, own do
    if result[originals[name] or wrapped[name] or name] == nil then return false end
  end
  return true
end

---Whether it is a library of the sandbox, such as `string`: an empty table that refuses assignments, but not `table.insert`.
local function is_library(value)
  local metatable = type(value) == "table" and debug.getmetatable(value)
  return metatable and metatable.__newindex ~= nil
end

local guard_of

local function copy(value, crossing, level)
  local kind = type(value)
  if kind == "function" then return crossing.is_native and value or wrapped[value] or guard_of(value) end
  if kind == "userdata" and originals[value] then return without_owner(originals[value], crossing, level) end
  if kind ~= "table" then return crossing.is_final and without_container(value) or value end
  if is_library(value) then
    cbk.fail("converter", "the file hands over a library, such as `cbk` or `string`, where a table of its own is expected")
  end
  if crossing.seen[value] then return crossing.seen[value] end
  if results[value] and is_unchanged(value, results[value]) then return without_owner(results[value], crossing, level) end
  check_level(level)
  local out = {}
  crossing.seen[value] = out
  for name, inner in next, value do out[copy(name, crossing, level + 1)] = copy(inner, crossing, level + 1) end
  return out
end

function to_library(value, taker) return copy(value, { seen = {}, is_final = false, taker = taker }, 1) end

local function to_native(value) return copy(value, { seen = {}, is_final = false, is_native = true }, 1) end

local function handed_over(value) return copy(value, { seen = {}, is_final = true }, 1) end

local MOST_TEXT = 4096 -- of an error
local MOST_CONTEXTS = 16

local KEPT = set "config convert shape unsupported" -- codes of errors that sandboxed code may use

local TEXTS = { "file", "key", "field", "expected", "found", "supported", "advice", "where" }

---An error of the library that sandboxed code may have changed.
local function copy_of_error(problem)
  local parts = { context = {} }
  for _, name in ipairs(TEXTS) do
    local text = rawget(problem, name)
    parts[name] = type(text) == "string" and text:sub(1, MOST_TEXT) or nil
  end
  local context = rawget(problem, "context")
  for i = 1, type(context) == "table" and MOST_CONTEXTS or 0 do
    local text = rawget(context, i)
    parts.context[i] = type(text) == "string" and text:sub(1, MOST_TEXT) or nil
  end
  local code = rawget(problem, "code")
  return select(2, pcall(cbk.fail, type(code) == "string" and code or "converter", problem.problem:sub(1, MOST_TEXT), parts))
end

---An error of sandboxed code as the library raises errors.
local function problem_of(problem)
  problem = originals[problem] or problem
  if type(problem) == "string" then return problem:sub(1, MOST_TEXT) end
  local is_ours = type(problem) == "table" and getmetatable(problem) ~= nil and type(rawget(problem, "problem")) == "string"
  if is_ours then return copy_of_error(problem) end
  local code, message = "converter", "the converter raised an error without a text; write error \"TEXT\" or cbk.fail(\"config\", \"TEXT\")"
  local said = type(problem) == "table" and rawget(problem, "message")
  if type(said) == "string" then code, message = KEPT[problem.code] and problem.code or code, said:sub(1, MOST_TEXT) end
  return select(2, pcall(cbk.fail, code, message))
end

local depth = 0 -- of sandboxed functions that run

local function done(fine, ...)
  depth = depth - 1
  if depth == 0 then limits.leave() end
  if not fine then error(problem_of((...)), 0) end
  return each(handed_over, ...)
end

---A function of the sandbox as the library calls it.
function guard_of(f)
  local guard = guards[f]
  if not guard then
    guard = function(...)
      if depth == 0 then limits.enter() end
      depth = depth + 1
      return done(pcall(f, each(handed, ...)))
    end
    guards[f], guarded[guard] = guard, f
    position.stand_for(guard, f)
  end
  return guard
end

border.guard = guard_of

---Forgets the library's tables that sandboxed files have, which may have changed them: the next file gets new ones.
function border.forget() arguments = setmetatable({}, { __mode = "k" }) end

-- --- Lua's own functions, for views as for tables

---A function that gives plain values: what it gets is copied as if it were handed over.
---@param f function
function border.native(f)
  return function(...) return f(each(to_native, ...)) end
end

---The sandbox's own table, or a copy of what it sees of another one.
local function table_of(value)
  local original = originals[value]
  if not original then return value end
  local out = {}
  for name in pairs(original) do
    if not visible.is_hidden(original, name) then out[to_sandbox(name)] = inside(original, name) end
  end
  return out
end

local failure = getmetatable(select(2, pcall(cbk.fail, "converter", "")))
visible.show(failure, "code message problem context file key field expected found supported advice where")

---A value that sandboxed code raised itself stays as it is; the library raises errors, and nothing else.
local function caught(fine, problem, ...)
  if fine then return true, problem, ... end
  if type(problem) == "table" and getmetatable(problem) == failure then problem = to_sandbox(problem) end
  return false, problem
end

---@type table<string, function>
border.functions = {
  type = function(value) return originals[value] and "table" or type(value) end,
  pairs = function(value) return pairs(table_of(value)) end,
  ipairs = function(value) return ipairs(table_of(value)) end,
  next = function(value, name) return next(table_of(value), name) end,
  unpack = function(value, from, to) return unpack(table_of(value), from, to) end,
  pcall = function(f, ...) return caught(pcall(f, ...)) end,
}

local function for_own(f)
  return function(value, ...)
    if originals[value] or is_library(value) then refuse_assignment(value, "…") end
    return f(value, ...)
  end
end

---@type table<string, function>
border.table_functions = {
  concat = function(value, ...) return table.concat(table_of(value), ...) end,
  maxn = function(value) return table.maxn(table_of(value)) end,
  insert = for_own(table.insert), remove = for_own(table.remove), sort = for_own(table.sort),
}

return border
