-- Classes: `Base:subclass(name, keywords)`. Calling a class makes an object and calls its `init`.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"

---@class cstorch.Class
---@field name string
---@field super? cstorch.Class
---@field class cstorch.Class           an object's class
---@field keywords? table<string, any>  the trailing keyword table: name to default, REQUIRED or OPTIONAL
---@field defined_in? string           the file, for help
---@field defined_as? string           the name of its definition there
---@field positional? integer           arguments before the keyword table; without it: those that `init` takes
---@field abstract? table[]             methods that a subclass must have; a list in it means one of those
local Object = { name = "Object", subclasses = {} }
Object.class = Object

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

local function initialize(class, object, ...)
  local declared = class.keywords
  if not declared then return object:init(...) end
  local positional = class.positional or debug.getinfo(class.init, "u").nparams - 2
  local arguments, count = { ... }, select("#", ...)
  errors.check(count <= positional + 1, "type", "%s: expected %d arguments and a keyword table, found %d", class.name, positional, count)
  arguments[positional + 1] = keywords.complete(class.name, declared, arguments[positional + 1])
  object:init(unpack(arguments, 1, positional + 1))
end

local function construct(class, ...)
  local missing = missing_methods(class)
  errors.check(missing == "", "type", "%s: the class lacks the abstract method %s", class.name, missing)
  local object = setmetatable({}, class.object_metatable)
  initialize(class, object, ...)
  return object
end

--- Metamethods that a class defines are those of its objects.
local function define(class, key, value)
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
  errors.check(type(name) == "string" and name ~= "", "type", "subclass: expected the name of the class, found %s", errors.show(name))
  local has_keywords = own_keywords == nil or type(own_keywords) == "table"
  errors.check(has_keywords, "type", "subclass: expected the keywords of %s as a table, found %s", name, errors.show(own_keywords))
  local metatable = {}
  for key, value in pairs(self.object_metatable or {}) do metatable[key] = value end
  local class = { name = name, super = self, subclasses = {}, object_metatable = metatable }
  metatable.class = class
  class.keywords = inherited_keywords(self, own_keywords)
  class.defined_in = debug.getinfo(2, "S").source:match "^@(.*)$"
  if type(metatable.__index) ~= "function" then metatable.__index = class end
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

---Whether the object's class is `class` or derives from it.
---@param class cstorch.Class
---@return boolean
function Object:isinstance(class) return is_a(self, class) end

local class = { Object = Object }

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
