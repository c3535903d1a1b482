-- Round trips of a converter's tables: a checkpoint there and back, and the same with random weights of other sizes. Actions and rules that
-- lose something show themselves without a second checkpoint.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local checkpoint = require "converters.modelzoo.checkpoint"
local compare = require "cbk.round_trip.compare"
local random = require "cbk.round_trip.random"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"
local trip = require "cbk.round_trip.trip"
local variants = require "cbk.round_trip.variants"

local round_trip = {}

---The formats of a side, the newest first.
local function formats_of(converter, side)
  local list, out = catalogue.formats(converter[side == "left" and 1 or 2]), {}
  for i = #list, 1, -1 do out[#out + 1] = list[i] end
  return out
end

---The trip of a table that reads this config, by the newest formats; nil and the reason if it does not read it.
---@param one Table
---@param side Side
---@param config Dict|nil
---@param computes boolean
---@return RoundTrip|nil, Job|string job_or_why
local function trip_of(one, side, config, computes)
  local why
  for _, src in ipairs(formats_of(one.converter, side)) do
    for _, tgt in ipairs(formats_of(one.converter, rules.other[side])) do
      local own = { model = one.model, converter = one.converter, side = side, src = src, tgt = tgt, config = config,
        computes = computes }
      local job, problem = trip.read(own)
      if job then return own, job end
      why = why or problem
    end
  end
  return nil, why
end

local function title_of(own) return ("%s, %s to %s and back"):format(own.model.model, own.src, own.tgt) end

---Runs a trip.
---@param own RoundTrip
---@param weights string
---@return RoundTripReport
local function report_of(own, weights)
  local made, why = trip.run(own)
  local out = { title = title_of(own), weights = weights }
  if made then out.result = compare.run(own, made) else out.refused, out.where = compare.refusal(own, why) end
  if made and own.computes then out.logits, out.not_computed = trip.logits(own, made) end
  return out
end

-- --- other sizes, from a class

---The model section of a config of a Model Zoo file, or the config itself; and the file with another one.
---@return Dict section, fun(section: Dict): Dict
local function section_of(config, src)
  if not (catalogue.release(src) and trainer.is_file(config)) then return config, function(section) return section end end
  return trainer.model(config), function(section)
    local whole = cbk.deep_copy(config)
    trainer.set_model(whole, section)
    return whole
  end
end

---The checkpoint with random weights that a trip begins with; nil and the reason if its table does not read the config.
---@param own RoundTrip
---@param config Dict   the whole file
---@return RoundTrip|nil, Job|string|nil job_or_why
local function with_weights(own, config)
  config = cbk.copy(config)
  config.torch_dtype, config.dtype = nil, nil -- random weights are float32
  local one = rules.variant(own, { config = config })
  local job, problem = trip.read(one)
  local known = job and trip.known(one, job, one.side)
  if not known then return nil, problem end
  one.source, problem = random.of_class(known)
  if not one.source then return nil, problem end
  local release = catalogue.release(one.src)
  if release then one.source = checkpoint.from_hf(one.source, release, config, cbk.dict()) end
  return one, job
end

---The trip that begins on the other side, with the config that a trip makes; nil if no class describes that side.
---@param own RoundTrip
---@param job Job   of `own`, with its config converted
---@return RoundTrip|nil
local function reversed(own, job)
  local other = rules.variant(own, { side = rules.other[own.side], src = own.tgt, tgt = own.src, source = false })
  return (with_weights(other, job.files[2]))
end

---Round trips of random weights of other sizes, for a table with a class on the side that is read.
---@param own RoundTrip   with the config that the sizes vary
---@param class Class
---@return RoundTripReport[] reports
local function of_other_sizes(own, class)
  local section, whole = section_of(own.config, own.src)
  local list, why = variants.of(section, class, function(config)
    local one, job = with_weights(own, whole(config))
    if not one then return nil, job end
    return { one, reversed(one, job) }
  end)
  local out = {}
  for _, variant in ipairs(list) do
    for _, one in ipairs(variant.taken) do out[#out + 1] = report_of(one, "random weights, " .. variant.text) end
  end
  if #out == 0 then
    local note = "the model takes no other sizes: " .. (why or "its class names none")
    out[1] = { title = title_of(own), weights = "random weights", note = note }
  end
  return out
end

---The config of a table's left side that says what the table asks for, and the sizes of the class.
---@param one Table
---@return Dict
local function least_config(one)
  local own = one.own
  local out = cbk.dict()
  for _, rule in ipairs(own.config or {}) do
    local is_plain = rule.kind == "must" and rule.left and type(rule.value) ~= "table"
    if is_plain and out[rule.left] == nil then out[rule.left] = rule.value end
  end
  for name, value in pairs(sections.constants(own, "left")) do
    if type(value) ~= "table" and type(value) ~= "function" and out[name] == nil then out[name] = value end
  end
  return variants.with_defaults(out, (own.classes or one.model.classes or {}).left)
end

-- --- other sizes, from a checkpoint

---The config with the sizes that the parts of a composite leave to their classes.
---@param config Dict
---@param own RoundTrip
---@return Dict
local function with_sizes_of_parts(config, own)
  local out = cbk.copy(config)
  for _, part in ipairs(own.converter.components or {}) do
    local name = part[own.side]
    out[name] = out[name] and variants.with_defaults(out[name], (part.classes or {})[own.side])
  end
  return out
end

---The fields that a table and its parts accept with one value only.
---@param own RoundTrip
---@return table<string, any>
local function limits_of(own)
  local out = {}
  for _, one in ipairs(own.converter.components or { own.converter }) do
    for name, value in pairs(one.config and sections.limits(one, own.side) or {}) do out[name] = value end
  end
  return out
end

---The round trip of random weights whose shapes are those of a checkpoint, multiplied.
---@param own RoundTrip
---@param factor number
---@param extents table<integer, true>   of the checkpoint
---@return RoundTripReport
local function of_factor(own, factor, extents)
  local section, whole, weights = own.config, nil, ("random weights, extents times %g"):format(factor)
  if section then
    section, whole = section_of(section, own.src)
    section = with_sizes_of_parts(section, own)
  end
  local config, is_count = variants.scaled(section, factor, extents, limits_of(own))
  local tensors, order = trip.tensors(own.source)
  local one = rules.variant(own, { config = config and whole(config), deduplicated = false })
  local made, why = random.like(tensors, order, function(shape) return variants.shape(shape, factor, is_count) end)
  if not made then return { title = title_of(own), weights = weights, note = why } end
  local release = catalogue.release(one.src)
  one.source = trip.tree(one, made)
  if release and one.config then one.source = checkpoint.from_hf(made, release, one.config, cbk.dict()) end
  local out = report_of(one, weights)
  -- the extents are a guess: a table that refuses them may be right
  if out.refused then out.note, out.refused = "the table refuses these shapes: " .. out.refused, nil end
  return out
end

---Round trips of random weights like those of a checkpoint, with other extents.
---@param own RoundTrip
---@return RoundTripReport[]
local function of_scaled_shapes(own)
  local tensors, extents, out = trip.tensors(own.source), {}, {}
  for _, tensor in pairs(tensors) do
    for _, extent in ipairs(tensor:shape()) do extents[tonumber(extent)] = true end
  end
  for i, factor in ipairs(variants.factors(tensors)) do out[i] = of_factor(own, factor, extents) end
  return out
end

-- --- tables

---@param one Table
---@param job Job
---@param src string
---@return Class|nil
local function class_of(one, job, src)
  local converter = job.configs[1].converter
  return not converter.components and catalogue.class_of(one.model, converter, src) or nil
end

---Round trips of a checkpoint, and of random weights of other sizes.
---@param one Table      that reads the checkpoint
---@param side Side
---@param config Dict|nil
---@param input JobInput
---@param computes boolean    whether the logits of both sides are compared
---@return RoundTripReport[]
function round_trip.of_checkpoint(one, side, config, input, computes)
  local own, job = trip_of(one, side, config, computes)
  if not own then
    return { { title = one.title, weights = "the given weights", note = job } }
  end
  own.source, own.deduplicated = input.source, input.deduplicated
  local out, class = { report_of(own, "the given weights") }, class_of(one, job, own.src)
  local more = config and class and of_other_sizes(rules.variant(own, { source = false, deduplicated = false }), class)
    or of_scaled_shapes(own)
  for _, report in ipairs(more) do out[#out + 1] = report end
  return out
end

---Round trips of random weights through a table, from the left, and from the right where the class of that side is known.
---@param one Table
---@param config Dict|nil   nil: what the table and the class say
---@param computes boolean
---@return RoundTripReport[]
local function of_table(one, config, computes)
  local out, whys = {}, {}
  for _, side in ipairs { "left", "right" } do
    local own, job = nil, nil
    if config or side == "left" then own, job = trip_of(one, side, config or least_config(one), computes) end
    local class = own and class_of(one, job, own.src)
    if class then
      for _, report in ipairs(of_other_sizes(own, class)) do out[#out + 1] = report end
    else
      whys[#whys + 1] = own and "no class describes its tensors" or job
    end
  end
  if #out == 0 then out[1] = { title = one.title, weights = "random weights", note = whys[1] } end
  return out
end

---Whether a table is for Hugging Face or layouts of the user's own, and not a step between two releases, which copies.
---@param one Table
local function is_tried(one)
  local is_step = catalogue.release(formats_of(one.converter, "left")[1]) and catalogue.release(formats_of(one.converter, "right")[1])
  return not (is_step or one.inside or one.part)
end

---Round trips of random weights through the tables of a file. With a config, those of the tables that read it.
---@param list Table[]
---@param config Dict|nil
---@param computes boolean   whether the logits of both sides are compared
---@return RoundTripReport[]
function round_trip.of_tables(list, config, computes)
  local out, notes, seen = {}, {}, {}
  for _, one in ipairs(list) do
    local is_new = is_tried(one) and not (config and seen[one.converter]) -- a config chooses between variants by itself
    seen[one.converter] = true
    for _, report in ipairs(is_new and of_table(one, config, computes) or {}) do
      local into = report.note and notes or out
      into[#into + 1] = report
    end
  end
  if config and #out > 0 then return out end -- other tables are for other configs
  for _, report in ipairs(notes) do out[#out + 1] = report end
  if #out == 0 and list[1] then
    out[1] = { title = list[1].model.model, weights = "random weights",
      note = "the model has several parts, or is inside another one; name a checkpoint and its config" }
  end
  return out
end

return round_trip
