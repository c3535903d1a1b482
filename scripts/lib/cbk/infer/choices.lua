-- The actions that may have been applied to a rule's tensors, the usual ones first. Those for one key on each side are here, those for
-- several in fused.lua. An action's field `assumes` names what it takes from the pair and other checkpoints may not share.

local fused = require "cbk.infer.fused"
local heads = require "cbk.infer.heads"
local shapes = require "cbk.infer.shapes"

local choices = {}

---@class Choice   An action as a converter writes it.
---@field text string      an expression; "nil" is a plain copy
---@field is_lossy? boolean   the other direction may round
---@field has_config? boolean   it reads the right config
---@field order? integer[]    of the right's keys
---@field each_dim? integer    the dimension of the one tensor with an extent for each key of the other side
---@field assumes? string     what must be as in the pair, besides the tensors' shapes: "heads of 8 rows"

---@class Trial    What is known of the tensors of a rule.
---@field rule InferredRule
---@field left Item[]
---@field right Item[]
---@field is_turned? boolean   left and right are swapped
---@field has_config boolean   the right config has the Model Zoo's counts of heads
---@field configs { left: Dict, right: Dict }

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

local function reversed(choice)
  return { text = ("layouts.reversed(%s)"):format(choice.text), has_config = choice.has_config, assumes = choice.assumes,
    each_dim = choice.each_dim }
end

local function transposed(choice)
  return { text = ("layouts.transposed(%s)"):format(choice.text), assumes = choice.assumes }
end

---One key on each side.
---@param trial Trial
---@param add fun(choice: Choice)
local function one_to_one(trial, add)
  local a, b = trial.left[1], trial.right[1]
  local affine = trial.rule.affine
  if affine then
    local factor, term = unpack(affine)
    local is_certain = math.abs(term) == 1 -- norms that are 1 + weight
    return add(factor == 1 and { text = ("layouts.plus(%.9g)"):format(term), is_lossy = true,
        assumes = not is_certain and ("%.9g more"):format(term) or nil }
      or { text = ("layouts.times(%.9g)"):format(factor), is_lossy = true, assumes = ("a factor of %.9g"):format(factor) })
  end
  if same_list(a.shape, b.shape) then add { text = "nil" } end
  if #a.shape == 2 then add { text = "actions.transpose" } end
  if same_list(a.shape, b.shape) and #a.shape < 3 then
    if trial.has_config then
      local both = { "queries", "keys" }
      if heads.has_word(b, "k", "key") then both = { "keys", "queries" } end
      if #a.shape == 1 then table.insert(both, heads.has_word(b, "norm") and 1 or 3, "vector") end
      for _, which in ipairs(both) do add { text = "actions.rotary." .. which, has_config = true } end
    end
    heads.each_rotation(a.shape[1] or 1, function(size, dim)
      local rotated = heads.rotation(trial, size, dim)
      add(rotated)
      add(reversed(rotated))
    end)
  end
  if same_list(a.shape, b.shape) and (#a.shape == 1 or #a.shape == 2) then
    for _, size in ipairs(heads.divisors(a.shape[1])) do
      local whole = size == a.shape[1]
      for _, inner in ipairs(heads.divisors(size)) do
        local text = whole and ("layouts.swapped_rows(%d)"):format(inner) or ("layouts.swapped_rows(%d, %d)"):format(inner, size)
        local assumes = ("blocks of %d rows%s"):format(inner, whole and "" or (" within %d"):format(size))
        if inner < size then add { text = text, assumes = assumes } end
      end
    end
  end
  if #a.shape == 2 and #b.shape == 2 and a.shape[1] == b.shape[2] and a.shape[2] == b.shape[1] then
    heads.each_rotation(a.shape[1], function(size, dim)
      local rotated = heads.rotation(trial, size, dim)
      add(transposed(rotated))
      add(transposed(reversed(rotated)))
    end)
  end
  if #b.shape == 2 and #a.shape >= 2 then
    add { text = ("layouts.first_row_last(%d)"):format(#a.shape) }
  end
  if #a.shape == 2 and #b.shape > 2 then
    add { text = ("layouts.reversed(layouts.first_row_last(%d))"):format(#b.shape) }
  end
  shapes.add(trial, add)
end

---Several keys that differ in a number on the left, one on the right.
---@param trial Trial
---@param add fun(choice: Choice)
local function stack(trial, add)
  local parts = #trial.rule[trial.rule.each.side]
  if parts > 1 then
    for dim = 1, #trial.right[1].shape - 1 do
      for _, turned in ipairs { "", ", true" } do
        add { text = ("layouts.joined_stacks(%d, %d%s)"):format(parts, dim, turned), each_dim = 0 }
      end
    end
    return
  end
  for dim = 0, #trial.right[1].shape - 1 do
    add { text = ("layouts.stacked(%d)"):format(dim), each_dim = dim }
    add { text = ("layouts.stacked(%d, true)"):format(dim), each_dim = dim }
    add { text = ("layouts.joined(%d, %s)"):format(dim, trial.rule.each.text),
      assumes = not trial.rule.each.text:find "at%." and ("%d parts"):format(trial.rule.each.count) or nil }
  end
end

---@param trial Trial
---@return Choice[]
function choices.of(trial)
  local out, each = {}, trial.rule.each
  local function add(choice) out[#out + 1] = choice end
  local function turned(make)
    local other = { rule = trial.rule, left = trial.right, right = trial.left, has_config = trial.has_config, configs = trial.configs,
      is_turned = true }
    make(other, function(choice) add(reversed(choice)) end)
  end
  if each then
    if each.side == "left" then stack(trial, add) else turned(stack) end
  elseif #trial.left > 1 then
    turned(fused.add)
  elseif #trial.right > 1 then
    fused.add(trial, add)
  else
    one_to_one(trial, add)
    if #trial.right[1].shape > #trial.left[1].shape then turned(shapes.add) end
  end
  return out
end

return choices
