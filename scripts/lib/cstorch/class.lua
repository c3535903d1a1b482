-- Classes: `Base:subclass(name, keywords)`. Calling a class makes an object and calls its `init`.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local text = require "cstorch.text"

-- The library's own methods raise an error when they are called without a colon. Names that an object does not have are errors as well.

---@class cstorch.Class
---@field noun string                   what messages call an object of it: "model", "optimizer"
---@field fields table<string, boolean>  names that objects of the class had, or may have: reading one that is absent gives nil
---@field name string
---@field super? cstorch.Class
---@field class cstorch.Class           an object's class
---@field keywords? table<string, any>  the trailing keyword table: name to default, REQUIRED or OPTIONAL
---@field defined_in? string           the file, for help
---@field is_own? boolean             the user made it
---@field defined_as? string           the name of its definition there
---@field positional? integer           arguments before the keyword table; without it: those that `init` takes
---@field set_by_init? string         a field that the base's init sets
---@field abstract? table[]             methods that a subclass must have; a list in it means one of those
local Object = { name = "Object", noun = "object", subclasses = {}, fields = {} }
Object.class = Object

--- Whether `value` is an object of `base` or of a class derived from it.
local function is_a(value, base)
  local metatable = type(value) == "table" and getmetatable(value)
  local own = type(metatable) == "table" and metatable.class
  while own do
    if own == base then return true end
    own = own.super
  end
  return false
end

-- --- names

--- Names that an object has or may have, for messages.
local function names_of(object)
  local names, class = {}, getmetatable(object).class
  local function add(map)
    for name in pairs(map or {}) do
      if type(name) == "string" and not name:find "^_" then names[#names + 1] = name end
    end
  end
  for _, registry in ipairs { "_parameters", "_buffers", "_modules" } do
    local entries = rawget(object, registry)
    if entries then add(entries) end
  end
  while class do
    add(class)
    add(class.fields)
    class = class.super
  end
  return names
end

--- The member that an object inherits under a name: nil for an empty field, an error for an unknown name.
local function member(object, name)
  local class = getmetatable(object).class
  local value = class[name]
  local declared = class.keywords
  if value ~= nil or type(name) ~= "string" or class.fields[name] or declared and declared[name] ~= nil then return value end
  errors.raise("value", "%s has no '%s'%s", class.name, name, errors.suggestion(name, names_of(object)))
end

--- Assigns a field. Its name is known from then on, even if the value is nil.
local function assign(object, name, value)
  getmetatable(object).class.fields[name] = true
  rawset(object, name, value)
end

--- The class with the keywords that the object keeps as fields.
local function as_text(object)
  local fields = text.fields(object.class.keywords or {}, object)
  return fields == "" and object.class.name or ("%s { %s }"):format(object.class.name, fields)
end

Object.object_metatable = { __index = member, __newindex = assign, __tostring = as_text }

-- --- methods

--- The library's methods, by the function that is called in their place.
local originals = setmetatable({}, { __mode = "k" })

local function is_library_method(name, value)
  return type(value) == "function" and type(name) == "string" and not name:find "^_" and debug.getlocal(value, 1) == "self"
    and errors.is_library(debug.getinfo(value, "S").source)
end

local function check_object(class, name, object)
  if is_a(object, class) then return end
  errors.check(name ~= "init", "type", "%s.init: pass the object first, as in Class.super.init(self, ...), found %s", class.name,
    errors.show(object))
  errors.raise("type", "%s.%s: call it with a colon, as in %s:%s(), found %s in the place of the %s", class.name, name, class.noun, name,
    errors.show(object), class.noun)
end

--- How many arguments come before the keyword table.
local function positional_of(class)
  local init = originals[class.init] or class.init
  return class.positional or debug.getinfo(init, "u").nparams - 2
end

--- An init that a subclass may call without the keyword table.
local function with_keywords(class, init)
  return function(self, ...)
    check_object(class, "init", self)
    local position = positional_of(class) + 1
    if not class.keywords or type((select(position, ...))) == "table" then return init(self, ...) end
    local arguments = { ... }
    arguments[position] = keywords.complete(class.name, class.keywords, arguments[position])
    return init(self, unpack(arguments, 1, position))
  end
end

local function with_object(class, name, method)
  return function(self, ...)
    check_object(class, name, self)
    return method(self, ...)
  end
end

-- --- making classes and objects

--- The abstract methods that `class` lacks, as text.
local function missing_methods(class)
  local missing, base = {}, class
  while base do
    for _, entry in ipairs(rawget(base, "abstract") or {}) do
      local alternatives, is_defined = type(entry) == "table" and entry or { entry }, false
      for _, method in ipairs(alternatives) do is_defined = is_defined or class[method] ~= nil end
      if not is_defined then missing[#missing + 1] = table.concat(alternatives, " or ") end
    end
    base = base.super
  end
  table.sort(missing)
  return table.concat(missing, ", ")
end

--- Fails on extra arguments of a library class's init, which Lua would ignore.
local function check_count(class, count, last)
  local init = originals[class.init]
  local info = init and debug.getinfo(init, "u")
  if not info or info.isvararg or count < info.nparams then return end
  local most = info.nparams - 1
  if count == most + 1 and keywords.is_map(last) then return keywords.none(class.name, last, class.is_own) end
  errors.raise("type", "%s: expected at most %d arguments, found %d", class.name, most, count)
end

local function initialize(class, object, ...)
  local declared = class.keywords
  if not declared then
    local count = select("#", ...)
    object:init(...) -- first: what it says of its arguments helps more
    return check_count(class, count, (select(math.max(count, 1), ...)))
  end
  local positional = positional_of(class)
  local arguments, count = { ... }, select("#", ...)
  errors.check(count <= positional + 1, "type", "%s: expected %d arguments and a keyword table, found %d", class.name, positional, count)
  arguments[positional + 1] = keywords.complete(class.name, declared, arguments[positional + 1], class.is_own)
  object:init(unpack(arguments, 1, positional + 1))
end

local function construct(class, ...)
  local missing = missing_methods(class)
  errors.check(missing == "", "type", "%s: the class lacks the abstract method %s", class.name, missing)
  local object = setmetatable({}, class.object_metatable)
  initialize(class, object, ...)
  local mark = class.set_by_init
  local is_set_up = mark == nil or rawget(object, mark) ~= nil
  errors.check(is_set_up, "runtime", "%s: its init must call %s.super.init(self, ...)", class.name, class.name)
  return object
end

--- Metamethods that a class defines are those of its objects.
local function define(class, key, value)
  local method = originals[value] or value
  if is_library_method(key, method) then
    value = key == "init" and with_keywords(class, method) or with_object(class, key, method)
    originals[value] = method
  end
  rawset(class, key, value)
  if type(key) == "string" and key:sub(1, 2) == "__" then class.object_metatable[key] = value end
end

local function inherited_keywords(base, own)
  local declared = base.keywords
  if not own then return declared end
  local merged = {}
  for name, default in pairs(declared or {}) do merged[name] = default end
  for name, default in pairs(own) do
    if default == keywords.REMOVED then default = nil end
    merged[name] = default
  end
  return merged
end

---Makes a class. Methods, abstract methods and metamethods (`__call`, `__index`, `__newindex`, …) are inherited. A function as
---`__index` finds the class as `getmetatable(object).class`.
---@param name string
---@param own_keywords? table<string, any>   name to default, `cstorch.REQUIRED` or `cstorch.OPTIONAL`
---@return cstorch.Class
function Object:subclass(name, own_keywords)
  local is_class = type(self) == "table" and rawget(self, "object_metatable") ~= nil
  errors.check(is_class, "type", "subclass: call it with a colon, as in Base:subclass(name), found %s in the place of the base",
    errors.show(self))
  errors.check(type(name) == "string" and name ~= "", "type", "subclass: expected the name of the class, found %s", errors.show(name))
  local has_keywords = own_keywords == nil or type(own_keywords) == "table"
  errors.check(has_keywords, "type", "subclass: expected the keywords of %s as a table, found %s", name, errors.show(own_keywords))
  local metatable = {}
  for key, value in pairs(self.object_metatable) do metatable[key] = value end
  local class = { name = name, super = self, subclasses = {}, object_metatable = metatable }
  class.fields = setmetatable({}, { __index = self.fields })
  metatable.class = class
  class.keywords = inherited_keywords(self, own_keywords)
  local source = debug.getinfo(2, "S").source
  class.defined_in, class.is_own = source:match "^@(.*)$", not errors.is_library(source)
  class.class = class
  table.insert(self.subclasses, class)
  return setmetatable(class, {
    __index = self,
    __newindex = define,
    __call = construct,
    __tostring = function() return "class " .. name end,
  })
end

---The `init` of a class that has none.
function Object.init() end

---Whether the object's class is `class` or derives from it.
---@param class cstorch.Class
---@return boolean
function Object:isinstance(class) return is_a(self, class) end

local class = { Object = Object, member = member, assign = assign }

---Names fields that objects may lack.
---@param of cstorch.Class
function class.optional(of, ...)
  for _, name in ipairs { ... } do of.fields[name] = true end
end

---Whether `value[name]` is not nil. For an object, an unknown name is not an error.
---@param value table|userdata
---@param name string
---@return boolean
function class.has(value, name)
  if is_a(value, Object) then return rawget(value, name) ~= nil or getmetatable(value).class[name] ~= nil end
  return value[name] ~= nil
end

---The method that a function of a class calls after its check; other functions are themselves.
---@param fn function
---@return function
function class.original(fn) return originals[fn] or fn end

---Whether `value` is an object of `base` or of a class derived from it.
---@type fun(value: any, base: cstorch.Class): boolean
class.is_a = is_a

---All classes derived from `base`, by their lower-cased name. Of two with one name the later one.
---@param base cstorch.Class
---@param into? table<string, cstorch.Class>
---@return table<string, cstorch.Class>
function class.descendants(base, into)
  into = into or {}
  for _, derived in ipairs(base.subclasses) do
    into[derived.name:lower()] = derived
    class.descendants(derived, into)
  end
  return into
end

return class
