-- How well a checkpoint fits a class: which of the class's tensors it has, and which others.

local fit = {}

---@class MissingKeys   Keys that are missing all together.
---@field name string
---@field keys string[]

---@class Fit
---@field known ClassTensors
---@field matched integer    keys that the class has, with the shape that the config says
---@field missing string[]   keys that the class needs and the checkpoint lacks
---@field unknown string[]   keys of the checkpoint that the class does not have
---@field lacks MissingKeys[]    optional parts that this checkpoint lacks: "the pooler"
---@field unsaid MissingKeys[]   fields whose default asks for biases that the checkpoint does not have
---@field wrong { key: string, why: string, fields: string[] }[]   keys with a shape that contradicts these config fields

---The key that all names of a tied tensor resolve to.
---@param known ClassTensors
---@param one ClassTensor
local function root_of(known, one)
  while one.tied_to and known.by_key[one.tied_to] do one = known.by_key[one.tied_to] end
  return one.key
end

---Removes `keys` from `missing` if every one is missing.
---@param missing table<string, boolean>
---@param keys string[]
---@return boolean taken
local function take(missing, keys)
  for _, key in ipairs(keys) do
    if not missing[key] then return false end
  end
  for _, key in ipairs(keys) do missing[key] = nil end
  return #keys > 0
end

---Moves missing keys that a checkpoint may lack to `unsaid` (biases that the config does not mention) and `lacks` (optional parts).
---@param missing table<string, boolean>
local function excuse(out, missing, known)
  local parts = {}
  for _, one in ipairs(known) do
    if one.part then
      parts[one.part] = parts[one.part] or {}
      table.insert(parts[one.part], one.key)
    end
  end
  for name, keys in pairs(known:assumed_biases()) do
    if take(missing, keys) then out.unsaid[#out.unsaid + 1] = { name = name, keys = keys } end
  end
  for name, keys in pairs(parts) do
    if take(missing, keys) then out.lacks[#out.lacks + 1] = { name = name, keys = keys } end
  end
  for _, list in ipairs { out.unsaid, out.lacks } do table.sort(list, function(a, b) return a.name < b.name end) end
  local left = {}
  for _, key in ipairs(out.missing) do left[#left + 1] = missing[key] and key or nil end
  out.missing = left
end

---@param known ClassTensors
---@param keys string[]
---@param shape_of fun(key: string): integer[]|false|nil   false: it is no tensor, and counts as missing; nil: its shape does not matter
---@return Fit
function fit.of(known, keys, shape_of)
  local out, has = { matched = 0, missing = {}, unknown = {}, wrong = {}, unsaid = {}, lacks = {}, known = known }, {}
  local is_there = {}
  for _, key in ipairs(keys) do is_there[key] = true end
  for _, key in ipairs(keys) do
    local own = known:own_key(key)
    local sparse = not own and known.release and key:match "^(.*)_mask$" -- the weight of a mask, which has its shape
    if sparse and is_there[sparse] then own = known:own_key(sparse) else sparse = nil end
    local shape = own and shape_of(key)
    local why, fields
    if shape then why, fields = known:mistake(own, shape) end
    if why then
      out.wrong[#out.wrong + 1] = { key = key, why = why, fields = fields }
    elseif not own or known.by_key[own].foreign then
      out.unknown[#out.unknown + 1] = key
    elseif not sparse then
      out.matched = out.matched + 1
    end
    if own and not sparse and shape ~= false then has[root_of(known, known.by_key[own])] = true end
  end
  local missing = {}
  for _, one in ipairs(known) do
    if not (one.buffer or one.optional or has[root_of(known, one)]) then
      has[root_of(known, one)] = true
      out.missing[#out.missing + 1], missing[one.key] = one.key, true
    end
  end
  if #out.missing > 0 then excuse(out, missing, known) end
  return out
end

---The number of mismatches between checkpoint and class.
---@param one Fit
function fit.mistakes(one) return #one.missing + #one.unknown + #one.wrong end

return fit
