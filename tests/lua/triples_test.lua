-- Every triple of the catalogue (model, source, target) that `cbk list` names: it has a note, it converts, and it comes back.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local list = require "cbk.converters.list"
local tiny = require "tiny"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"

local catalogue = converters.catalogue
local describe, it, is_true = harness.describe, harness.it, harness.is_true

-- A model that Hugging Face does not have is made of another one's weights.
local stand_in = { ["bert-summarization"] = "bert-token-classifier" }

---The first way from Hugging Face to each format, by model.
local function ways_by_name()
  local out = {}
  for _, way in ipairs(tiny.ways()) do
    out[way.name] = out[way.name] or {}
    out[way.name][way.format] = out[way.name][way.format] or way
  end
  return out
end

---Converts without a word.
local function run(...)
  local out
  conversion.warnings(function(...) out = { conversion.run(...) } end, ...)
  return out
end

---Tiny models in every format, made when they are asked for: config and checkpoint.
---@param name string
local function maker(name)
  local source = stand_in[name] or name
  local ways, newest, made = ways_by_name()[source] or {}, tiny.newest_ways()[source] or tiny.composite(source), {}
  local function of_hugging_face(format)
    local way = ways[format] or newest
    made[way] = made[way] or { tiny.model(way) }
    return made[way]
  end
  return function(format, other)
    if format == "hf" then return of_hugging_face(other) end
    if not made[format] then
      local config, root = unpack(of_hugging_face(format))
      made[format] = run(source, "hf", format, config, root)
    end
    return made[format]
  end
end

---Up to 1.7, BERT's pooler has the encoder's activation.
local function for_target(config, target)
  local release = catalogue.release(target)
  if not release or releases.since(release, "1.8") or not (cbk.find(config, "model") or {}).pooler_nonlinearity then return config end
  config = cbk.deep_copy(config)
  config.model.pooler_nonlinearity = config.model.encoder_nonlinearity
  return config
end

---@param a Dict   tensors, or the parts of a composite
local function equal_tensors(a, b)
  for part, value in cbk.items(a) do
    if cbk.kind(a, part) == "dict" then equal_tensors(value, b[part]) else return conversion.equal_tensors(a, b) end
  end
end

local function weights_of(root, format) return format == "hf" and root or root.model end

---@param make fun(format: string, other: string): { [1]: Dict, [2]: Dict }
local function there_and_back(name, source, target, make)
  local config, root = unpack(make(source, target))
  local there = run(name, source, target, for_target(config, target), root)
  local back = run(name, target, source, there[1], there[2])
  equal_tensors(weights_of(root, source), weights_of(back[2], source))
end

describe("Every triple of the catalogue", function()
  local triples, count = {}, 0
  for _, row in ipairs(list.rows()) do
    triples[row.model] = triples[row.model] or {}
    table.insert(triples[row.model], row)
    count = count + #row.src_formats * #row.tgt_formats
  end
  it("is one of thousands", function() is_true(count > 8000, count) end)

  for _, name in ipairs(naming.sorted(triples)) do
    local model = catalogue.find(name)
    it(("has a note, converts, and comes back: %s"):format(name), function()
      local make = model.model == name and maker(name)
      for _, row in ipairs(triples[name]) do
        is_true(row.note ~= "", row.src)
        for _, source in ipairs(row.src_formats) do
          for _, target in ipairs(row.tgt_formats) do
            if source ~= target then is_true(converters.route(name, source, target) ~= nil, source .. " to " .. target) end
            -- one direction is enough, as it comes back; other names of a model have the same tables
            local is_taken = source == "hf" or harness.is_sampled(("%s %s %s"):format(name, source, target), 4)
            if make and is_taken and (source == "hf" or target ~= "hf" and catalogue.place_of(source) < catalogue.place_of(target)) then
              local fine, why = pcall(there_and_back, name, source, target, make)
              if not fine then error(("%s to %s: %s"):format(source, target, tostring(why)), 0) end
            end
          end
        end
      end
    end)
  end
end)
