-- Help for names of cstorch, from the comments above their definitions and from the keywords that classes declare.

local annotations = require "cbk.annotations"
local cbk = require "cbk"
local examples = require "cstorch.help_examples"
local keywords = require "cstorch.keywords"
local original = require("cstorch.class").original
local text = require "cstorch.text"

local help = {}

-- --- finding comments

--- The lines of a source file; read once.
local sources = setmetatable({}, { __index = function(known, path)
  local lines = {}
  for line in (cbk.fs.read(path) .. "\n"):gmatch "(.-)\r?\n" do lines[#lines + 1] = line end
  known[path] = lines
  return lines
end })

--- The annotation that ends above line `number`: its lines without the dashes.
local function comment_above(lines, number)
  local first = number
  while first > 1 and lines[first - 1]:find "^%s*%-%-%-" do first = first - 1 end
  local block = {}
  for i = first, number - 1 do block[#block + 1] = lines[i]:match "^%s*%-%-%-%s?(.*)$" end
  return block
end

--- Where the class is defined: its file and line. A schedule's is its definition, which all families share.
local function place_of(class)
  local name, path = class.name, class.defined_in
  local starts = { ('subclass("%s"'):format(name), ('activation("%s"'):format(name),
    ('subclass "%s"'):format(name), ("local %s = {"):format(class.defined_as or name) }
  for number, line in ipairs(path and sources[path] or {}) do
    for _, start in ipairs(starts) do
      if line:find(start, 1, true) then return path, number end
    end
  end
end

-- --- showing

--- Text, parameters and results of an annotation.
local function add_comment(block, out)
  local text_lines = {}
  for _, line in ipairs(block) do
    if not line:find "^@" then text_lines[#text_lines + 1] = line end
  end
  for _, line in ipairs(annotations.paragraphs(text_lines)) do out[#out + 1] = "  " .. line end
  for _, line in ipairs(block) do
    local tag, rest = line:match "^@(%w+)%s*(.*)$"
    if tag == "param" then
      out[#out + 1] = "    " .. rest:gsub("%s%s+", "  ")
    elseif tag == "return" then
      out[#out + 1] = "    returns " .. rest:gsub("%s%s+", "  ")
    elseif tag == "field" then
      out[#out + 1] = "    ." .. rest:gsub("%s%s+", "  ")
    elseif tag == "class" then
      local words = rest:match "%s%s+(%S.*)$"
      if words then out[#out + 1] = "  " .. words end
    end
  end
end

--- The keywords of a class with their defaults.
local function add_keywords(class, out)
  local names = class.keywords and keywords.names(class.keywords) or {}
  if names[1] == nil then return end
  out[#out + 1] = ""
  out[#out + 1] = "  keywords and their defaults:"
  for _, name in ipairs(names) do out[#out + 1] = ("    %s = %s"):format(name, text.value(class.keywords[name])) end
end

--- Methods that a class has for its base class only.
local HOOKS = {
  init = true, validate = true, check_arguments = true, closed_form = true, preinitialize = true, extra_text = true, convert_group = true,
  convert_state = true, check_group = true,
}

--- The public methods that a class defines itself.
local function add_methods(class, out)
  local names = {}
  for name, member in pairs(class) do
    if type(member) == "function" and not name:find "^_" and not HOOKS[name] then names[#names + 1] = ":" .. name end
  end
  table.sort(names)
  if names[1] then out[#out + 1] = "\n  methods: " .. table.concat(names, ", ") end
end

--- The arguments of a constructor, such as "(inputs, outputs, kw)", and the comment that explains them.
local function arguments_of(class)
  if not class.init then return "", {} end
  local info = debug.getinfo(original(class.init), "S")
  local path = info.source:match "^@(.*)$"
  local arguments = path and (sources[path][info.linedefined] or ""):match "function[^%(]*(%(.-%))"
  if not arguments or arguments == "()" then return "", {} end
  return arguments, comment_above(sources[path], info.linedefined)
end

local function class_text(name, class)
  local arguments, comment = arguments_of(class)
  local out = { name .. arguments .. (class.super and class.super.name ~= "Object" and (" : " .. class.super.name) or "") }
  local path, number = place_of(class)
  if path then add_comment(comment_above(sources[path], number), out) end
  add_comment(comment, out)
  add_keywords(class, out)
  add_methods(class, out)
  return table.concat(out, "\n")
end

local function function_text(name, fn)
  local info = debug.getinfo(original(fn), "S")
  local out = { name }
  local path = info.source:match "^@(.*)$"
  if path then
    local line = sources[path][info.linedefined] or ""
    out[1] = name .. (line:match "function[^%(]*(%(.-%))" or "()")
    add_comment(comment_above(sources[path], info.linedefined), out)
  end
  return table.concat(out, "\n")
end

--- The line of meta.lua that declares a method of tensors, and the method's arguments.
local function method_lines()
  local lines, found, names = sources[assert(package.searchpath("cstorch.meta", package.path))], {}, {}
  for number, line in ipairs(lines) do
    local name, arguments = line:match "^function Tensor:([%w_]+)(%(.-%))"
    if name then
      found[name], names[#names + 1] = { number = number, arguments = arguments }, name
    end
    if line:find "^local Tensor" then found.class = number end
  end
  return lines, found, names
end

--- Help about tensors that compute, or about one of their methods; or nil, and the nearest names.
local function tensor_text(method)
  local lines, found, names = method_lines()
  if method then
    local one = found[method]
    if not one then
      local near = cbk.nearest(method, names, 3)
      for i, known in ipairs(near) do near[i] = "cstorch.Tensor:" .. known end
      return nil, near
    end
    local out = { ("cstorch.Tensor:%s%s"):format(method, one.arguments) }
    add_comment(comment_above(lines, one.number), out)
    return table.concat(out, "\n"), {}
  end
  local out = { "cstorch.Tensor" }
  add_comment(comment_above(lines, found.class), out)
  for _, name in ipairs(names) do
    local comment = comment_above(lines, found[name].number)
    out[#out + 1] = ("  :%s%s  %s"):format(name, found[name].arguments, comment[1])
  end
  return table.concat(out, "\n"), {}
end

local function names_of(module)
  local names = {}
  for name in pairs(module) do names[#names + 1] = name end
  local metatable = getmetatable(module)
  for name in pairs(type(metatable) == "table" and metatable.parts or {}) do
    if rawget(module, name) == nil then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function is_class(value) return type(value) == "table" and rawget(value, "object_metatable") ~= nil end

--- The text with the example of the name.
local function with_example(name, body)
  if not examples[name] then return body end
  return ("%s\n\nexample:\n  %s"):format(body, examples[name])
end

---The names of all public functions and classes, below "cstorch".
---@return string[]
function help.names()
  local out, seen = {}, {}
  local function visit(module, name)
    if seen[module] then return end
    seen[module] = true
    for _, part in ipairs(names_of(module)) do
      local value, whole = module[part], name .. "." .. part
      local metatable = type(value) == "table" and getmetatable(value)
      local is_public = not part:find "^_"
      if is_public and (type(value) == "function" or is_class(value)) then
        out[#out + 1] = whole
      elseif is_public and type(metatable) == "table" and metatable.namespace then
        visit(value, whole)
      end
    end
  end
  visit(require "cstorch", "cstorch")
  return out
end

---A one-line description of a name; empty if it has none.
---@param name string
function help.summary(name)
  local body = help.text(name) or ""
  return body:match "^[^\n]*\n  (%S[^\n]*)" or ""
end

---Help about "cstorch", "cstorch.optim", "cstorch.optim.AdamW" or "cstorch.optim.Optimizer:zero_grad"; or nil, and the nearest names.
---@param name string
---@return string? text, string[] nearest
function help.text(name)
  local rest = name:match "^c[sb]torch%.Tensor%f[^%w_][.:]?([%w_]*)$"
  if rest then return tensor_text(rest ~= "" and rest or nil) end
  local place, value = "cstorch", require "cstorch"
  for separator, part in name:gsub("^cbtorch", "cstorch"):gmatch "([.:])([%w_]+)" do
    local found
    if type(value) == "table" then
      local fine, member = pcall(function() return value[part] end)
      found = fine and member or nil
    end
    if found == nil then
      local near = type(value) == "table" and cbk.nearest(part, names_of(value), 3) or {}
      for i, known in ipairs(near) do near[i] = place .. separator .. known end
      return nil, near
    end
    place, value = place .. separator .. part, found
  end
  if is_class(value) then return with_example(place, class_text(place, value)), {} end
  if type(value) == "function" then return with_example(place, function_text(place, value)), {} end
  if type(value) ~= "table" then return ("%s = %s"):format(place, text.value(value)), {} end
  return ("%s\n  %s"):format(place, table.concat(names_of(value), "\n  ")), {}
end

return help
