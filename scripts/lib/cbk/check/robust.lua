-- Robust statistics of a number of each layer: how far it is from those of all layers, and of the nearest ones.

local robust = {}

---@param list number[]
---@return number
function robust.median(list)
  local sorted = {}
  for i, number in ipairs(list) do sorted[i] = number end
  table.sort(sorted)
  local middle = #sorted / 2
  if #sorted % 2 == 1 then return sorted[math.ceil(middle)] end
  return (sorted[middle] + sorted[middle + 1]) / 2
end

local NEAREST = 4 -- layers: two on each side, so that one more unusual layer among them does not matter

---The median of the layers nearest to a layer, without itself.
---@param medians table<integer, number>   of each layer
---@param layer integer
---@param last integer
local function near(medians, layer, last)
  local list, distance = {}, 1
  while #list < NEAREST and distance <= last do
    for _, other in ipairs { layer - distance, layer + distance } do
      if medians[other] then list[#list + 1] = medians[other] end
    end
    distance = distance + 1
  end
  return #list > 0 and robust.median(list) or nil
end

---@class Deviation
---@field all number    from the median of all
---@field near number   from the median of the nearest layers; sizes change smoothly from the first layer to the last
---@field z_all number    both in standard deviations, which are estimated by the median
---@field z_near number

local SPREAD = 1.4826 -- of the median absolute deviation of normal numbers: their standard deviation
local LEAST_SPREAD = 0.1

---How far each number is from the others.
---@param list number[]
---@param places integer[]   the layer of each, from 1; a layer may have several
---@return Deviation[]
function robust.deviations(list, places)
  local of_layer, last = {}, 0
  for i, place in ipairs(places) do
    of_layer[place], last = of_layer[place] or {}, math.max(last, place)
    table.insert(of_layer[place], list[i])
  end
  local medians, reference, out, of_near, of_all = {}, {}, {}, {}, {}
  for place, own in pairs(of_layer) do medians[place] = robust.median(own) end
  for place in pairs(of_layer) do reference[place] = near(medians, place, last) or medians[place] end
  local middle = robust.median(list)
  for i, number in ipairs(list) do
    out[i] = { all = number - middle, near = number - reference[places[i]] }
    of_near[i], of_all[i] = math.abs(out[i].near), math.abs(out[i].all)
  end
  local function spread(sizes) return math.max(SPREAD * robust.median(sizes), LEAST_SPREAD) end
  local spread_near, spread_all = spread(of_near), spread(of_all)
  for i, one in ipairs(out) do one.z_near, one.z_all = of_near[i] / spread_near, of_all[i] / spread_all end
  return out
end

---Whether the logarithm of a size is far from all others and from its neighbours, in one direction, and the others are not as far from
---each other.
---@param one Deviation
---@param limits { all: number, near: number, z: number, are_alike?: boolean }   factors, and standard deviations; are_alike: of healthy
---layers, so that it is enough to be far from all, if two unusual layers make their neighbours look unusual
---@return boolean
function robust.is_far(one, limits)
  return math.abs(one.all) > math.log(limits.all) and math.abs(one.near) > math.log(limits.near) and one.all * one.near > 0
    and (one.z_near > limits.z or limits.are_alike == true and one.z_all > limits.z)
end

return robust
