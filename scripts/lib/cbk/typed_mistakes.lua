-- Mistakes in code that was typed (at the prompt, after -e): the values that it names can be looked at, so that the advice is exact.

local cbk = require "cbk"
local naming = require "cbk.naming"

local typed_mistakes = {}

---@param value any
---@return string   "Checkpoint", "Dict", …; "" for values of Lua
local function type_of(value)
  local metatable = type(value) == "userdata" and debug.getmetatable(value)
  return metatable and rawget(metatable, "__name") or ""
end

---The value of names that are joined by dots, such as "ckpt.model"; nil if one of them has none. Nothing is called.
---@param chain string
---@param env table
local function value_of(chain, env)
  local value = env
  for name in chain:gmatch "[^.]+" do
    local fine, item = pcall(function() return value[name] end)
    if not fine then return nil end
    value = item
  end
  return value
end

-- --- fields that are nil

---The key with dots that begins with a name: the one that is typed, or else the first.
---@param dict Dict
---@param name string
---@param typed string   with what follows it: "lm_head.weight"
---@return string|nil
local function dotted_key(dict, name, typed)
  local first, best
  for key in cbk.items(dict) do
    if type(key) == "string" and key:sub(1, #name + 1) == name .. "." then
      first = first or key
      if (typed .. "."):sub(1, #key + 1) == key .. "." then best = key end
    end
  end
  return best or first
end

---How to index a key of what `chain` names.
local function indexed(chain, key, env)
  local first, rest = chain:match "^([^.]+)%.?(.*)$"
  if type_of(value_of(first, env)) ~= "Checkpoint" then return ('%s["%s"]'):format(chain, key) end
  rest = (rest .. "."):gsub("^root%.", ""):gsub("^%.$", "")
  return ('%s["%s%s"]'):format(first, rest, key)
end

---@return string   "; did you mean 'b'?", or nothing
local function suggestion(dict, name)
  local names = cbk.keys(dict)
  for i, one in ipairs(names) do names[i] = tostring(one) end
  return naming.suggestion(cbk.nearest(name, names, 1))
end

---Why a key in brackets is nil: ckpt.model["lm_head.wieght"].
---@param name string
---@return string|nil
local function of_key(name, code, env)
  for chain, key in code:gmatch "%f[%w_]([%a_][%w_.]*)%[['\"]([^'\"]*)['\"]%]" do
    local dict = key == name and value_of(chain, env)
    if dict and type_of(dict) == "Dict" and dict[name] == nil then
      return ("%s has no '%s'%s"):format(chain, name, suggestion(dict, name))
    end
  end
end

---Why a field of a Dict is nil.
---@param name string
---@return string|nil   nil: not known
local function of_field(name, code, env)
  if not name:find "^[%a_][%w_]*$" then return of_key(name, code, env) end
  for chain, rest in code:gmatch("%f[%w_]([%a_][%w_.]*)%." .. name .. "%f[^%w_]([%w_.]*)") do
    local dict = value_of(chain, env)
    if type_of(dict) == "Dict" and dict[name] == nil then
      local key = dotted_key(dict, name, name .. rest)
      if key then return ("%s has no '%s', but '%s': write %s"):format(chain, name, key, indexed(chain, key, env)) end
      return ("%s has no '%s'%s"):format(chain, name, suggestion(dict, name))
    end
  end
  return of_key(name, code, env)
end

-- --- comparisons

local METHODS = { ["<"] = "lt", ["<="] = "le", [">"] = "gt", [">="] = "ge" }
local FLIPPED = { lt = "gt", le = "ge", gt = "lt", ge = "le" }

---The method that compares a tensor as the operator would.
---@return string|nil
local function of_comparison(code, env)
  for left, operator, right in code:gmatch "%f[%w_]([%w_.]+)%s*([<>]=?)%s*(%-?[%w_.]+)" do
    local method, tensor, other = METHODS[operator], left, right
    if tonumber(left) then method, tensor, other = FLIPPED[method], right, left end
    local kind = type_of(value_of(tensor, env))
    local cstorch = value_of("cstorch", env) and "cstorch" or "require('cstorch')"
    if kind == "Tensor" then tensor = ("%s.tensor(%s)"):format(cstorch, tensor) end
    if kind == "Tensor" or kind == "cstorch.Tensor" then
      local one = kind == "Tensor" and (", or of one element %s:item()"):format(left == other and right or left) or ""
      return ("'%s' does not compare tensors: %s:%s(%s)%s"):format(operator, tensor, method, other, one)
    end
  end
end

---The value of names and literal keys: ckpt["model.w"], a.b[1]. Nil for other code; nothing is called.
---@param text string
local function value_at(text, env)
  local names = text:gsub("%b[]", function(index) return index:find "^%[['\"%d][^%[%]]*%]$" and "" or nil end)
  if not names:find "^[%a_][%w_.]*$" then return nil end
  local compiled = loadstring("return " .. text)
  local fine, value = pcall(setfenv(compiled or error, env))
  return fine and value or nil
end

local BY_ELEMENTS = { Tensor = "compare", ["cstorch.Tensor"] = "eq" }

---A hint for "a == b" of tensors, which in Lua asks whether they are one object.
---@param code string
---@param env table
---@return string|nil
function typed_mistakes.identity(code, env)
  local left, right = code:match "^%s*(.-)%s*[=~]=%s*(.-)[;%s]*$"
  local one, other = value_at(left or "", env), value_at(right or "", env)
  local method = BY_ELEMENTS[type_of(one)]
  if not method or one == other or type_of(other) ~= type_of(one) then return nil end
  return ("in Lua '==' asks whether two tensors are one object; %s:%s(%s) compares their elements"):format(left, method, right)
end

-- --- PyTorch's indexing

---What PyTorch's index means, in Lua.
---@param name string     of the tensor
---@param inside string   "1, 2", "0:3, 5"
---@return string|nil   "w[2][3]", "w:slice(0, 0, 3):select(1, 5)"
local function in_lua(name, inside)
  local elements, part, dim = name, name, 0
  for one in (inside .. ","):gmatch "%s*([^,]-)%s*," do
    local index, start, stop = one:match "^%d+$", one:match "^(%d*)%s*:%s*(%d*)$"
    if index then
      elements = elements and ("%s[%d]"):format(elements, index + 1)
      part = ("%s:select(%d, %s)"):format(part, dim, index)
    elseif start then
      elements, stop = nil, stop ~= "" and ", " .. stop or ""
      if #start + #stop > 0 then part = ("%s:slice(%d, %s%s)"):format(part, dim, start ~= "" and start or "0", stop) end
      dim = dim + 1
    else
      return nil
    end
  end
  return elements and elements .. ", which counts from 1" or part
end

---@return string|nil
local function of_index(code)
  for name, inside in code:gmatch "%f[%w_]([%a_][%w_.]*)%[([%d:,%s]+)%]" do
    local text = inside:find "[:,]" and in_lua(name, inside)
    if text then return ("'%s[%s]' is not Lua: write %s"):format(name, inside, text) end
  end
end

---The message with a better text, if the mistake is one of these; its place at the beginning stays.
---@param message string   Lua's own
---@param code string      what was typed
---@param env table        its globals
---@return string|nil
function typed_mistakes.text(message, code, env)
  local index = message:find "near '[:,]'" and of_index(code)
  if index then return (message:match "^.-:%d+: " or "") .. index end
  local place, what = message:match "^(.-)(attempt to .*)$"
  local name = what and what:match "^attempt to index field '([^']*)' %(a nil value%)"
  local text = name and of_field(name, code, env)
    or what and what:find "^attempt to compare " and of_comparison(code, env)
  return text and place .. text or nil
end

return typed_mistakes
