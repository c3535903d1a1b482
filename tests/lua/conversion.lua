-- What tests of converters need: jobs without files, tensors that are easy to recognize, comparisons.

local cbk = require "cbk"
local converters = require "cbk.converters"
local warnings = require "cbk.warnings"
local harness = require "harness"
local hf_config = require "converters.modelzoo.hf_config"
local naming = require "cbk.naming"
local catalogue, convert = converters.catalogue, converters.convert

converters.load()

local conversion = {}

function conversion.same(a, b, what)
  harness.checked()
  if a == b or a ~= nil and b ~= nil and cbk.equal(a, b) then return end
  local function shown(value) return value == nil and "nothing" or cbk.config.dump(value, "json") end
  error(("%s: %s is not %s"):format(what or "value", shown(a), shown(b)), 2)
end

function conversion.fails(part, f, ...)
  harness.checked()
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

---@param what? string   said of the tensor that differs
function conversion.equal_tensors(want, got, what)
  for key, tensor in cbk.items(want) do
    local name = what and what .. ": " .. key or key
    assert(got[key] ~= nil, name .. " is missing")
    if cbk.kind(want, key) == "dict" then
      conversion.equal_tensors(tensor, got[key], name)
    else
      conversion.same(got[key]:tolist(), tensor:tolist(), name)
    end
  end
end

---Converts config and checkpoint from one format to another; returns both.
---@param options? table   of the job
function conversion.run(model, src, tgt, config, root, options)
  local one = conversion.job(model, src, tgt, options)
  one.keeps_fields, one.source, one.hf_config = true, root, hf_config.of(root)
  config = convert.config(one, config)
  return config, convert.checkpoint(one, root)
end

---A checkpoint of tensors that all differ. An entry is a key and a shape; `{weight,bias}` in the key makes both, the bias as
---long as the weight has rows.
function conversion.checkpoint(entries)
  local out = cbk.dict()
  for i, entry in ipairs(entries) do
    local shape = { unpack(entry, 2) }
    local stem = entry[1]:match "^(.*){weight,bias}$"
    out[stem and stem .. "weight" or entry[1]] = conversion.counted(shape, 1000 * i)
    if stem then out[stem .. "bias"] = conversion.counted({ shape[1] }, 1000 * i + 500) end
  end
  return out
end

---A Hugging Face model to a release and back: every tensor and every field that the config has come back as they were.
---@return Dict cs_config, Dict cs, Dict config, Dict hf   of the release, and what came back
function conversion.there_and_back(model, release, config, hf)
  local cs_config, cs = conversion.run(model, "hf", release, config, hf)
  local again_config, again = conversion.run(model, release, "hf", cs_config, cs)
  conversion.equal_tensors(hf, again)
  for name, value in cbk.items(config) do conversion.same(again_config[name], value, model .. ": " .. name) end
  return cs_config, cs, again_config, again
end

---A dict with further fields, or with other values; without those that `gone` names.
function conversion.with(base, more, gone)
  local out = cbk.copy(base)
  for _, name in ipairs(naming.sorted(more or {})) do out[name] = more[name] end
  for _, name in ipairs(gone or {}) do out[name] = nil end
  return out
end

---What `f` warned of.
---@return string[]
function conversion.warnings(f, ...)
  local seen = warnings.new()
  local ok, why = seen:run(f, ...)
  if not ok then error(why, 0) end
  return seen.list
end

return conversion
