-- Configs of tiny models (tiny.lua) with other values of some fields, and what becomes of them.

local cbk = require "cbk"
local conversion = require "conversion"
local convert = require("cbk.converters").convert
local tiny = require "tiny"

local variations = {}

variations.ways = tiny.newest_ways()

---The config of a tiny Hugging Face model of the family.
function variations.hf_config(name) return tiny.config(name, variations.ways[name].converter) end

---The config of a tiny model of the family in the release `format`.
local function cs_config(name, format)
  local out
  conversion.warnings(function()
    out = convert.config(conversion.job(name, "hf", format), variations.hf_config(name))
  end)
  return out
end

---Sets fields, whose names may be dotted, in a copy.
local function changed(config, change)
  config = cbk.deep_copy(config)
  for path, value in pairs(change) do
    local section, field = config, path
    while field:find "%." do
      local first, rest = field:match "^([^.]+)%.(.*)$"
      if section[first] == nil then section[first] = cbk.dict() end
      section, field = section[first], rest
    end
    section[field] = value
  end
  return config
end

---Converts the config with other values of some fields.
---@param case table   model, formats of the source and the target, fields
function variations.run(case)
  local name, src, tgt, change = unpack(case)
  local config
  if src == "hf" then
    config = changed(variations.hf_config(name), change)
  else
    config = cs_config(name, src)
    local model = config.trainer and config.trainer.init.model or config.model
    config.model = changed(model, change)
  end
  return convert.config(conversion.job(name, src, tgt), config)
end

---Every case must be refused with its message, which is looked up as plain text.
function variations.refuses(cases)
  for _, case in ipairs(cases) do
    conversion.warnings(function() conversion.fails(case[5], variations.run, case) end)
  end
end

---The model section, or Hugging Face's config, that a case becomes, and what was warned of.
---@return Dict, string
function variations.converted(case)
  local out
  local reported = conversion.warnings(function() out = variations.run(case) end)
  return out.model or out, table.concat(reported, "\n")
end

return variations
