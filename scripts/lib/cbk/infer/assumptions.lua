-- Facts that an inferred rule takes from the pair and that other checkpoints need not share, such as the size of a head. The converter
-- checks the pair's shapes if such a number matters.

local content = require "cbk.infer.content"
local source = require "cbk.infer.source"

local assumptions = {}

---The shape of a tensor, or those of a list, as the converter writes them: "32x32 + 16x32", "3 of 4x3".
---@param items Item[]
---@return string
function assumptions.shapes(items)
  local shapes = {}
  for i, item in ipairs(items) do shapes[i] = table.concat(item.shape, "x") end
  for _, one in ipairs(shapes) do
    if one ~= shapes[1] then return table.concat(shapes, " + ") end
  end
  return (#shapes > 1 and #shapes .. " of " or "") .. shapes[1]
end

---The shapes that a side of a rule has in the pair: "32x32; 48x48".
---@param rule InferredRule
---@param side Side
---@param ordered fun(items: Item[]): Item[]   in the order of the rule's keys
local function known_shapes(rule, side, ordered)
  local out, has = {}, {}
  for _, pair in ipairs(rule.pairs) do
    local text = assumptions.shapes(ordered(pair[side]))
    if not has[text] then
      has[text], out[#out + 1] = true, text
    end
  end
  return table.concat(out, "; ")
end

---Whether no tensor and no other rule shows the order of a rule's elements, because all of them are equal.
---@param rule InferredRule
local function is_order_unknown(rule)
  if rule.like and rule.like.choice == rule.choice then return false end
  local is_vector = #rule.left == 1 and #rule.right == 1 and not rule.each
  for _, pair in ipairs(rule.pairs) do
    for _, side in ipairs { "left", "right" } do
      for _, item in ipairs(pair[side]) do
        if item.numel > 1 and not content.is_constant(item) then return false end
        local extents = 0
        for _, n in ipairs(item.shape) do extents = extents + (n > 1 and 1 or 0) end
        is_vector = is_vector and extents < 2
      end
    end
  end
  return not is_vector -- a vector is matched by its name, and copied
end

---A choice that holds only for as many layers, or parts of a layer, as the pair has.
---@param choice Choice
---@param witnesses table<Side, LayerWitness>|nil
---@return Choice
local function with_layers(choice, witnesses)
  if not witnesses then return choice end
  local keys = {}
  for _, side in ipairs { "left", "right" } do
    local one = witnesses[side]
    keys[#keys + 1] = one and ("%s = { last = %s, beyond = %s }"):format(side, source.text(one.last), source.text(one.beyond)) or nil
  end
  local action = choice.text ~= "nil" and ", " .. choice.text or ""
  return { text = ("evidence.as_many_layers({ %s }%s)"):format(table.concat(keys, ", "), action) }
end

---@param choice Choice
---@param rule InferredRule
---@param ordered table<Side, fun(items: Item[]): Item[]>
---@param numbers string|nil   the name of the table with the numbers of the pair's configs
---@return Choice
local function with_order(choice, rule, ordered, numbers)
  if is_order_unknown(rule) then
    return { text = ("evidence.only_equal(%s)"):format(choice.text == "nil" and "" or choice.text) }
  end
  if not choice.assumes then return choice end
  local more = numbers and ", " .. numbers .. (choice.is_lossy and ", true" or "") or "" -- a factor may depend on the depth
  return { text = ("in_pair.action(%q, %q, %q, %s%s)"):format(choice.assumes, known_shapes(rule, "left", ordered.left),
    known_shapes(rule, "right", ordered.right), choice.text, more) }
end

---A rule's choice as the converter writes it, with the checks that it needs.
---@param choice Choice
---@param rule InferredRule
---@param ordered table<Side, fun(items: Item[]): Item[]>
---@param numbers string|nil   the name of the table with the numbers of the pair's configs
---@return Choice
function assumptions.guarded(choice, rule, ordered, numbers)
  local out = with_layers(with_order(choice, rule, ordered, numbers), rule.layers)
  for _, witnesses in ipairs(rule.inner or {}) do out = with_layers(out, witnesses) end
  return out
end

return assumptions
