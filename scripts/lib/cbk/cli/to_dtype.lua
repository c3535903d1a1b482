-- `--to-dtype`: floating tensors in another dtype.

local cbk = require "cbk"
local cli = require "cbk.cli"
local naming = require "cbk.naming"
local ties = require "cbk.ties"

local to_dtype = {}

local TENSORS = require("cbk.tensor_kinds").ALL

local FLOATING = { "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
  "float8_e8m0fnu" }

---For `:convert`: a floating dtype as the value of an option.
---@param option string
function to_dtype.floating(option)
  return function(text)
    local dtype = cli.dtype(text)
    if dtype and cbk.dtype(dtype).floating then return dtype end
    local question = naming.question(not dtype and cbk.nearest(text, FLOATING, 2))
    local advice = question or "known are " .. table.concat(FLOATING, ", ")
    return nil, ("%s '%s': expected a floating dtype; %s"):format(option, text, advice)
  end
end

---@param parser table
---@param what string   "all floating tensors"
function to_dtype.option(parser, what)
  parser:option("--to-dtype", ("convert %s to this dtype: bfloat16, float16, float32, … (default: unchanged)"):format(what))
    :argname("DTYPE"):convert(to_dtype.floating "--to-dtype")
end

---A function for `cbk.rewrite` that casts floating tensors; tied ones stay tied.
---@param name string         a dtype
---@param counters string[]   gets whole numbers that the dtype cannot hold, such as 1001 steps: "state.0.step: 1001 becomes 1000"
function to_dtype.caster(name, counters)
  local cast = ties.caster(name)
  return function(key, value)
    if not TENSORS[cbk.kind(value)] then return value end
    local made = cast(value)
    if made ~= value and #value:shape() == 0 then
      local old, new = value:item(), made:item()
      if old ~= new and old % 1 == 0 then counters[#counters + 1] = ("%s: %g becomes %g"):format(key, old, new) end
    end
    return made == value and value or made:as { role = value.role, requires_grad = value.requires_grad }
  end
end

---@param name string   the dtype
---@param counters string[]
---@param advice string   "--include copies the weights alone"
function to_dtype.warn_of_counters(name, counters, advice)
  if #counters == 0 then return end
  cbk.warn(("%s cannot hold whole numbers of the checkpoint: %s; %s"):format(name, naming.listed(counters, 3), advice))
end

return to_dtype
