-- What tests of converters need: jobs without files, tensors that are easy to recognize, comparisons.

local cbk = require "cbk"
local converters = require "cbk.converters"
local catalogue, convert = converters.catalogue, converters.convert

converters.load()

local conversion = {}

function conversion.same(a, b, what)
  if cbk.equal(a, b) then return end
  error(("%s: %s is not %s"):format(what or "value", cbk.config.dump(a, "json"), cbk.config.dump(b, "json")), 2)
end

function conversion.fails(part, f, ...)
  local ok, why = pcall(f, ...)
  if ok then error("should have failed with '" .. part .. "'", 2) end
  local text = tostring(type(why) == "table" and why.message or why)
  if not text:find(part, 1, true) then error(("'%s' does not say '%s'"):format(text, part), 2) end
end

function conversion.job(model, src, tgt, options)
  local found, zoo_name = catalogue.find(model)
  local out = { model = found, zoo_name = zoo_name, path = catalogue.path(found, catalogue.resolve(src), catalogue.resolve(tgt)), seed = 1 }
  for key, value in pairs(options or {}) do out[key] = value end
  return out
end

function conversion.counted(shape, from)
  local n, list = 1, {}
  for _, extent in ipairs(shape) do n = n * extent end
  for i = 1, n do list[i] = from + i end
  return cbk.tensor(list, { shape = shape, dtype = "float32" })
end

function conversion.equal_tensors(want, got)
  for key, tensor in cbk.items(want) do
    assert(got[key] ~= nil, key .. " is missing")
    conversion.same(got[key]:tolist(), tensor:tolist(), key)
  end
end

---Converts config and checkpoint from one format to another; returns both.
function conversion.run(model, src, tgt, config, root)
  local one = conversion.job(model, src, tgt)
  config = convert.config(one, config)
  return config, convert.checkpoint(one, root)
end

---What `f` warned of.
---@return string[]
function conversion.warnings(f, ...)
  local seen, warn = {}, cbk.warn
  cbk.warn = function(message) seen[#seen + 1] = message end -- luacheck: ignore
  local ok, why = pcall(f, ...)
  cbk.warn = warn -- luacheck: ignore
  if not ok then error(why, 0) end
  return seen
end

return conversion
