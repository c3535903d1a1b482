-- The checks of `cbk copy` for quantised weights: it refuses casts, and copies in which codes lack their scales.

local cbk = require "cbk"
local dequantised = require "cbk.dequantised"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"

local quantised_copy = {}

---@class QuantisedCopy
---@field found Quantised
---@field source any
---@field path string
---@field keys table<string, string|false>   the new keys of codes and scales; false: not copied
local QuantisedCopy = {}
QuantisedCopy.__index = QuantisedCopy

---The tree with numbers in place of the codes of its quantised weights.
---@param source any
---@param path string    of the checkpoint
---@param dtype string   of these weights
---@param checkpoint Checkpoint
---@param allowed? string[]   --allow-external
---@return any
function quantised_copy.dequantised(source, path, dtype, checkpoint, allowed)
  local cannot = ("cannot dequantise '%s'"):format(path)
  local config, problem = quantised.config_beside(path, allowed)
  local options = { dtype = dtype, cannot = cannot, checkpoint = checkpoint, config_problem = problem }
  local tree, found = dequantised.tree(source, config, options)
  if #found.weights == 0 then
    local why = cannot .. ": it has no quantised weights (codes with scales beside them)"
    cbk.fail("unsupported", why, { advice = "leave out --dequantize" })
  end
  if #found.narrow > 0 then cbk.fail("unsupported", quantised.narrow_problem(found.narrow, "the checkpoint"), { context = { cannot } }) end
  local orphans = {}
  for key in cbk.leaves(tree) do orphans[#orphans + 1] = quantised.is_part_name(tostring(key)) and tostring(key) or nil end
  if #orphans > 0 then
    cbk.warn(("there are no codes beside what is named like scales, which is copied as it is: %s"):format(naming.listed(orphans, 3)))
  end
  return tree
end

---@param source any     the tree that is copied
---@param path string    of the checkpoint
---@param is_as_stated? boolean   false: the config beside it says nothing about the weights of this tree (default: true)
---@return QuantisedCopy
function quantised_copy.new(source, path, is_as_stated)
  local found = quantised.find(source, is_as_stated ~= false and (quantised.config_beside(path)) or nil)
  local out = setmetatable({ found = found, source = source, path = path, keys = {} }, QuantisedCopy)
  for _, one in ipairs(found.weights) do
    out.keys[one.key] = one.key
    for _, part in ipairs(one.parts) do out.keys[part] = part end
  end
  for _, one in ipairs(found.narrow) do out.keys[one.key] = one.key end
  return out
end

---Records the new key of a leaf.
---@param key string
---@param new string|nil
function QuantisedCopy:note(key, new)
  if self.keys[key] ~= nil then self.keys[key] = new or false end
end

---The keys of the parts that a weight has where it is written, by the key of its codes.
---@param root any
---@return table<string, table<string, boolean>>
local function parts_by_codes(root)
  local out = {}
  for _, one in ipairs(quantised.find(root).weights) do
    out[one.key] = {}
    for _, part in ipairs(one.parts) do out[one.key][part] = true end
  end
  return out
end

---Fails if codes are copied without all of their scales, or under names that do not show which belong together.
---@param root any   the tree that is written
function QuantisedCopy:check_parts(root)
  local written = #self.found.weights > 0 and parts_by_codes(root) or {}
  for _, one in ipairs(self.found.weights) do
    local new = self.keys[one.key]
    local function refuse(what, advice)
      cbk.fail("key", ("cannot copy '%s' of '%s' %s: the weight is quantised (%s), and its codes mean nothing without its scales; %s")
        :format(one.key, self.path, what, one.method, advice))
    end
    for _, part in ipairs(new and one.parts or {}) do
      local other = self.keys[part]
      if not other then refuse(("without '%s'"):format(part), "copy both, or none") end
      if not (written[new] and written[new][other]) then
        refuse(("as '%s', with '%s'"):format(new, other), "rename both in the same way")
      end
    end
  end
end

---Half of the largest number of a dtype. Codes of 8-bit floats reach it, because scales are chosen like that; plain weights never do.
local HALF = { float8_e4m3fn = 224, float8_e4m3fnuz = 120, float8_e5m2 = 28672, float8_e5m2fnuz = 28672 }

---The largest magnitude in a tensor of the source.
---@return number
function QuantisedCopy:largest(key)
  self.rows = self.rows or cbk.leaf_rows(self.source)
  local stats = self.rows:value(self.rows:find(key)):stats()
  return math.max(math.abs(stats.max or 0), math.abs(stats.min or 0))
end

---Fails if quantised weights would be cast. 8-bit floats without scales may be cast if they are plain numbers.
---@param dtype string
function QuantisedCopy:check_cast(dtype)
  local cannot, first, count = ("cannot copy '%s' as %s"):format(self.path, dtype), nil, 0
  for _, one in ipairs(self.found.weights) do
    if self.keys[one.key] then cbk.fail("unsupported", self.found:problem(), { context = { cannot } }) end
  end
  for _, one in ipairs(self.found.narrow) do
    local new, half = self.keys[one.key], HALF[one.dtype]
    if new and self.found.stated then cbk.fail("unsupported", self.found:problem(), { context = { cannot } }) end
    local largest = new and half and self:largest(one.key) or 0
    if half and largest >= half then
      cbk.fail("unsupported", ("%s: '%s' (%s) has numbers up to %g, as the codes of quantised weights, and no scales; get the checkpoint "
        .. "with its scales, or the one of 16 or 32 bits that it was made from"):format(cannot, one.key, one.dtype, largest))
    end
    if new and half then first, count = first or one, count + 1 end
  end
  if first then
    cbk.warn(("weights of 8 bits without scales are written as plain numbers: %d, such as '%s' (%s); if these were codes, they are wrong")
      :format(count, first.key, first.dtype))
  end
end

---Runs `write`. If the output's format cannot store a dtype of quantised weights, the error describes them.
---@param write function
---@return any ...   its results
function QuantisedCopy:write(write)
  local fine, result, more = pcall(write)
  if fine then return result, more end
  local summary = self.found:is_quantised() and self.found:summary()
  if summary and type(result) == "table" and result.code == "dtype" then
    errors.put_in(result, ("cannot copy '%s' (%s)"):format(self.path, summary))
  end
  error(result, 0)
end

return quantised_copy
