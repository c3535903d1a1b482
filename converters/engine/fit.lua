-- How well a checkpoint fits a class: which of the class's tensors it has, and what else.

local fit = {}

---@class Fit
---@field matched integer    keys that the class has, with the shape that the config says
---@field missing string[]   keys that the class needs and the checkpoint lacks
---@field unknown string[]   keys of the checkpoint that the class does not have
---@field wrong { key: string, why: string }[]   keys with another shape than the config says

---The key as the class has it: the Model Zoo's may begin with `model.`.
---@param known ClassTensors
---@param key string
---@return string|nil
local function own_key(known, key)
  if known.by_key[key] then return key end
  local short = key:match "^model%.(.*)$"
  return short and known.by_key[short] and short or nil
end

---The name that all names of a tensor lead to.
---@param known ClassTensors
---@param one ClassTensor
local function root_of(known, one)
  while one.tied_to and known.by_key[one.tied_to] do one = known.by_key[one.tied_to] end
  return one.key
end

---@param known ClassTensors
---@param keys string[]
---@param shape_of fun(key: string): integer[]|nil   nil: it is no tensor
---@return Fit
function fit.of(known, keys, shape_of)
  local out, has = { matched = 0, missing = {}, unknown = {}, wrong = {} }, {}
  for _, key in ipairs(keys) do
    local own = own_key(known, key)
    local shape = own and shape_of(key)
    local why = shape and known:mistake(own, shape)
    if not own then
      out.unknown[#out.unknown + 1] = key
    elseif why then
      out.wrong[#out.wrong + 1] = { key = key, why = why }
    else
      out.matched = out.matched + 1
    end
    if own then has[root_of(known, known.by_key[own])] = true end
  end
  for _, one in ipairs(known) do
    if not (one.buffer or one.optional or has[root_of(known, one)]) then
      has[root_of(known, one)] = true
      out.missing[#out.missing + 1] = one.key
    end
  end
  return out
end

---How much speaks against the class; 0 where nothing does.
---@param one Fit
function fit.mistakes(one) return #one.missing + #one.unknown + #one.wrong end

return fit
