-- Weights unlike the same weight of the other layers: much larger or smaller, of the other sign, constant, or with rows of zeros.

local extents = require "cbk.extents"
local layers = require "cbk.check.layers"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local robust = require "cbk.check.robust"
local runs = require "cbk.check.runs"
local shell_word = require "cbk.cli.shell_word"
local values = require "cbk.check.values"

local siblings = {}

---@class Sibling   The facts kept about a weight.
---@field file string
---@field key string
---@field dims integer
---@field numel integer
---@field rms number
---@field mean number
---@field largest number
---@field constant? number
---@field is_usual? boolean   the constant is one that new models have there
---@field odd_rows? table     of Tensor:scan
---@field shape string
---@field reach? number       of a bias: the RMS of the numbers that it is added to

local LEAST_LAYERS = 6 -- that say what is usual
local LEAST_LAYERS_OF_ROWS = 3
local LEAST_ELEMENTS = 16
local NO_ROWS = {} -- of matrices without rows or columns of zeros

---The facts about a tensor; nil if its size says nothing about it, as those of codes and of an optimizer's states.
---@param one CheckedTensor
---@return Sibling|nil
function siblings.facts(one)
  local scan, name = one.scan, naming.last(one.key)
  local is_weight = scan.rms and scan.nan == 0 and scan.inf == 0 and scan.numel >= LEAST_ELEMENTS and not one.is_scale
    and not (one.known and one.known.buffer) and not name:find "running_" and not name:find "mask"
  if not is_weight then return nil end
  local constant = type(scan.constant) == "number" and scan.constant or nil
  local odd_rows = scan.odd_rows
  if odd_rows and not (odd_rows.zero or odd_rows.zero_columns) then odd_rows = NO_ROWS end
  return { file = one.file, key = one.key, dims = #one.row.shape, numel = scan.numel, rms = scan.rms, mean = scan.mean,
    largest = scan.largest, constant = constant, is_usual = constant and values.is_usual_constant(one, constant), odd_rows = odd_rows,
    shape = extents.shape(one.row.shape) }
end

---@class SiblingSeries   The same weight of all layers; of experts, all in each layer.
---@field members Sibling[]
---@field layers integer[]                         their numbers, ascending
---@field layer_of table<Sibling, integer>         the index in `layers`
---@field glob string                               that matches their keys

---The members of one shape each. One with another shape than all others is compared with them.
---@param members Sibling[]
---@return Sibling[][]
local function by_shape(members)
  local of_shape, out = {}, {}
  for _, one in ipairs(members) do
    if not of_shape[one.shape] then
      of_shape[one.shape] = {}
      out[#out + 1] = of_shape[one.shape]
    end
    table.insert(of_shape[one.shape], one)
  end
  if #out == 2 and math.min(#out[1], #out[2]) == 1 then return { members } end
  return out
end

---@param members Sibling[]
---@param number_of table<Sibling, integer>
---@param glob string
---@return SiblingSeries
local function new_series(members, number_of, glob)
  local series, index = { members = members, layers = {}, layer_of = {}, glob = glob }, {}
  for _, one in ipairs(members) do
    if not index[number_of[one]] then index[number_of[one]], series.layers[#series.layers + 1] = 0, number_of[one] end
  end
  table.sort(series.layers)
  for i, number in ipairs(series.layers) do index[number] = i end
  for _, one in ipairs(members) do series.layer_of[one] = index[number_of[one]] end
  return series
end

---The series of the tensors. A key with several numbers is in a series for each of them.
---@param list Sibling[]
---@return SiblingSeries[]
local function series_of(list)
  local by_id, groups, out = {}, {}, {}
  for _, one in ipairs(list) do
    local key = one.key:gsub("(experts?[._/])%d+([./])", "%1*%2")
    for _, place in ipairs(layers.places(key)) do
      local id = table.concat({ place.before, place.rest, one.dims }, "\0")
      local group = by_id[id]
      if not group then
        group = { members = {}, number_of = {}, glob = ("%s*.%s"):format(place.before, place.rest) }
        by_id[id], groups[#groups + 1] = group, group
      end
      group.members[#group.members + 1], group.number_of[one] = one, tonumber(place.digits)
    end
  end
  for _, group in ipairs(groups) do
    for _, members in ipairs(by_shape(group.members)) do out[#out + 1] = new_series(members, group.number_of, group.glob) end
  end
  return out
end

local ENDS = 2 -- layers at each end, which are often unlike those between them

---@class SiblingLimits   How many times larger or smaller than all siblings, and than those of the nearest layers, is unusual.
---@field all number
---@field near number
---@field z number      how many standard deviations it is from the nearest layers
---@field only_large? boolean   small ones are usual
---@field are_alike? boolean    healthy layers have nearly the same

-- Healthy models change by up to 5 from the first layer to the last, and as much again at their ends. Adapters start from 0, so their
-- size says how much a layer was adapted. Some norms are stored without their 1, and differ by 10 from layer to layer.
-- Biases start from 0, so some are near 0 beside others that are not.
local SIZES = { matrix = { all = 8, near = 6, z = 4, are_alike = true }, special = { all = 30, near = 20, z = 5 },
  vector = { all = 16, near = 12, z = 6 }, bias = { all = 100, near = 50, z = 5, only_large = true } }
-- Single elements of healthy models are up to 35 times larger than any of the siblings' ("super weights").
local PEAKS = { matrix = { all = 100, near = 50, z = 4, only_large = true }, vector = { all = 1000, near = 500, z = 6, only_large = true } }
local MUCH = math.log(4) -- by how much more an element is unusual than the RMS, to be named in place of it

local function is_bias(key)
  local name = naming.last(key)
  return name:find "bias" ~= nil or name:find "beta" ~= nil
end

---@param series SiblingSeries
---@param one Sibling
---@return SiblingLimits|nil   nil: any size is usual
local function size_limits(series, one)
  local layer = series.layer_of[one]
  local is_end = layer <= ENDS or layer > #series.layers - ENDS
  if is_bias(one.key) and one.dims < 2 then return not is_end and one.reach and one.rms > one.reach and SIZES.bias or nil end
  if one.dims < 2 then return not is_end and SIZES.vector or nil end
  return (is_end or one.key:find "lora_") and SIZES.special or SIZES.matrix
end

---@param one Sibling
---@return SiblingLimits
local function peak_limits(_, one) return one.dims < 2 and PEAKS.vector or PEAKS.matrix end

---@class SiblingMeasure
---@field name string
---@field field string     of the facts
---@field limits fun(series: SiblingSeries, one: Sibling): SiblingLimits|nil
---@field least number     the lowest limit

---"30 x that of its 31 siblings (0.0203; more than 8 x)"
local function ratio_text(measure, value, usual, count, limit)
  local ratio = value / usual
  local times = ratio >= 1 and ("%.3g x"):format(ratio) or ("1/%.3g of"):format(1 / ratio)
  local bound = ratio >= 1 and ("more than %d x"):format(limit) or ("less than 1/%d"):format(limit)
  return ("%s %.3g, %s that of its %d siblings (%.3g; %s)"):format(measure, value, times, count, usual, bound)
end

---The members of a series that are unlike the others in a measure, with texts.
---@param series SiblingSeries
---@param members Sibling[]
---@param measure SiblingMeasure
---@return table<Sibling, string> texts, table<Sibling, number> factors
local function unlike(series, members, measure)
  local logs, places, least, most = {}, {}, math.huge, 0
  for _, one in ipairs(members) do least, most = math.min(least, one[measure.field]), math.max(most, one[measure.field]) end
  if most < measure.least * least then return {}, {} end
  for i, one in ipairs(members) do logs[i], places[i] = math.log(one[measure.field]), series.layer_of[one] end
  local usual, texts, factors, count = robust.deviations(logs, places), {}, {}, 0
  for i, one in ipairs(members) do
    local limits, deviation = measure.limits(series, one), usual[i]
    local far = limits and robust.is_far(deviation, limits)
    if far and (deviation.all > 0 or not limits.only_large) then
      count, factors[one] = count + 1, math.abs(deviation.all)
      texts[one] = ratio_text(measure.name, one[measure.field], math.exp(logs[i] - deviation.all), #members - 1, limits.all)
    end
  end
  if count > math.max(1, #members / 4) then return {}, {} end -- two kinds of layers
  return texts, factors
end

local SIZE = { name = "RMS", field = "rms", limits = size_limits, least = SIZES.matrix.all }
local PEAK = { name = "largest element", field = "largest", limits = peak_limits, least = PEAKS.matrix.all }
local SHARE = 0.5 -- of the RMS, that a mean with a clear sign has at least
local FEW = 0.1 -- of a series, that may be wrong; or one

---Norms whose mean has another sign than that of nearly all siblings.
---@param members Sibling[]
---@return table<Sibling, string>
local function of_other_sign(members)
  local signs, means = { [1] = {}, [-1] = {} }, {}
  for i, one in ipairs(members) do
    means[i] = one.mean
    if one.dims > 1 or is_bias(one.key) then return {} end
    if math.abs(one.mean) > SHARE * one.rms then table.insert(signs[one.mean > 0 and 1 or -1], one) end
  end
  local out = {}
  for sign, few in pairs(signs) do
    if #few <= math.max(1, FEW * #members) and #signs[-sign] + #few == #members then
      for _, one in ipairs(few) do
        out[one] = ("mean %.3g, and those of %d siblings have the other sign (%.3g; each is more than %.1f x its RMS)"):format(
          one.mean, #signs[-sign], robust.median(means), SHARE)
      end
    end
  end
  return out
end

---What to do about an unusual size: the rule's advice with a command.
---@param one Sibling
---@param series SiblingSeries
local function advice_on(one, series)
  return ("look at all layers with `cbk plot %s %s --by-layer`, and compare the weight with an earlier checkpoint: it was scaled twice, "
    .. "or the training was unstable there"):format(shell_word(one.file), shell_word(series.glob))
end

---@param series SiblingSeries
---@param found Findings
---@param is_new fun(rule: string, key: string): boolean
local function check_sizes(series, members, found, is_new)
  local sizes, size_factors = unlike(series, members, SIZE)
  local peaks, peak_factors = unlike(series, members, PEAK)
  local signs = of_other_sign(members)
  for _, one in ipairs(members) do
    local is_peak = peaks[one] and peak_factors[one] > (size_factors[one] or 0) + MUCH
    local text = is_peak and peaks[one] or sizes[one] or peaks[one] or signs[one]
    if text and is_new("layer-outlier", one.key) then
      found:add("layer-outlier", one.file, one.key, text, { advice = advice_on(one, series) })
    end
  end
end

local CHANGED = 0.02 -- of a constant: how far trained siblings are from it at least
local LEAST_SIZE = 1e-4

local function distance_from(one, constant) return math.sqrt(math.max(0, one.rms ^ 2 - 2 * constant * one.mean + constant ^ 2)) end

local FAR = 100 -- from constant siblings, times the size of the numbers that it scales or is added to

---Reports the vectors that are far from a constant that new models have, where all siblings still have it. Training moves a vector of
---numbers of about 1 much less.
---@param members Sibling[]   that are not constant
---@param constants Sibling[]
local function check_beside_constants(members, constants, found, is_new)
  local constant = constants[1] and constants[1].constant
  if #constants < LEAST_LAYERS - 1 or #members > math.max(1, FEW * #constants) or constant ~= 0 and constant ~= 1 then return end
  for _, one in ipairs(constants) do
    if one.constant ~= constant or one.dims > 1 then return end
  end
  for _, one in ipairs(members) do
    local size, distance = is_bias(one.key) and one.reach or not is_bias(one.key) and 1, distance_from(one, constant)
    if size and distance > FAR * math.max(1, size) and is_new("layer-outlier", one.key) then
      found:add("layer-outlier", one.file, one.key, ("all elements of its %d siblings are %d, and its own are far from that (RMS %.3g; "
        .. "more than %.3g)"):format(#constants, constant, distance, FAR * math.max(1, size)))
    end
  end
end

---Reports constants that new models have, where the siblings have been trained.
---@param members Sibling[]   that are not constant
---@param constants Sibling[]
local function check_constants(members, constants, found, is_new)
  if #constants > math.max(1, FEW * #members) then return end
  for _, one in ipairs(constants) do
    local distances = {}
    for i, other in ipairs(members) do distances[i] = distance_from(other, one.constant) end
    table.sort(distances)
    local least = math.max(CHANGED * math.abs(one.constant), LEAST_SIZE)
    if one.is_usual and distances[1] >= least and is_new("constant", one.key) then
      found:add("constant", one.file, one.key, ("all elements are %.6g, and those of its %d siblings are not: they are at least %.3g "
        .. "from it (RMS; more than %.3g)"):format(one.constant, #members, distances[1], least))
    end
  end
end

local WITHOUT = 0.75 -- of the siblings have no rows of zeros

---Reports rows or columns of zeros that the siblings do not have.
---@param members Sibling[]
---@param field string   of odd_rows
local function check_dead(members, field, noun, found, is_new)
  local without, with = 0, {}
  for _, one in ipairs(members) do
    if one.odd_rows and one.odd_rows[field] then
      with[#with + 1] = one
    elseif one.odd_rows then
      without = without + 1
    end
  end
  if without < LEAST_LAYERS_OF_ROWS - 1 or without < WITHOUT * (without + #with - 1) then return end
  for _, one in ipairs(with) do
    local dead, all = one.odd_rows[field], one.odd_rows[noun .. "s"]
    local others = without == #members - 1 and "its" or ("%d of its"):format(without)
    if is_new("dead-rows", noun .. one.key) then
      found:add("dead-rows", one.file, one.key, ("%s of %s %s all 0 (%s, counted from 0); %s %d siblings have none"):format(
        numbers.grouped(dead.count), numbers.counted(all, noun), dead.count == 1 and "is" or "are", runs.text(dead), others,
        #members - 1))
    end
  end
end

local WEIGHT_OF = { bias = "weight", beta = "gamma" }

---Gives each bias the RMS of what its weight makes of inputs of the size 1, if it has one.
---@param list Sibling[]
local function add_reach(list)
  local by_key = {}
  for _, one in ipairs(list) do by_key[one.key] = one end
  for _, one in ipairs(list) do
    local weight = by_key[one.key:gsub("%a+$", WEIGHT_OF)]
    if weight and weight ~= one then one.reach = weight.rms * math.sqrt(weight.numel / one.numel) end
  end
end

---@param list Sibling[]
---@param found Findings
function siblings.check(list, found)
  add_reach(list)
  local seen = {}
  local function is_new(rule, key)
    local id = rule .. "\0" .. key
    local is_first = not seen[id]
    seen[id] = true
    return is_first
  end
  for _, series in ipairs(series_of(list)) do
    local members, constants = {}, {}
    for _, one in ipairs(series.members) do table.insert(one.constant and constants or members, one) end
    if #series.layers >= LEAST_LAYERS and #members >= LEAST_LAYERS - 1 then
      check_sizes(series, members, found, is_new)
      check_constants(members, constants, found, is_new)
    end
    if #series.layers >= LEAST_LAYERS then check_beside_constants(members, constants, found, is_new) end
    if #series.layers >= LEAST_LAYERS_OF_ROWS then
      check_dead(members, "zero", "row", found, is_new)
      check_dead(members, "zero_columns", "column", found, is_new)
    end
  end
end

return siblings
