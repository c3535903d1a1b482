-- Finds the tensors of two checkpoints that belong together, step by step, the certain ones first. A new kind of correspondence is a
-- step here, and, if it changes tensors, a choice (choices.lua) and a function of the vocabulary (converters/vocabulary).

local beside = require "cbk.infer.beside"
local layers = require "cbk.infer.layers"
local one_to_one = require "cbk.infer.one_to_one"
local several = require "cbk.infer.several"
local State = require "cbk.infer.state"

local match = {}

local SIDES = { "left", "right" }

---@param left Inventory
---@param right Inventory
---@param is_affine fun(rule: InferredRule): boolean   whether the rule's factor and term give the values
---@return InferredRule[]
function match.rules(left, right, is_affine)
  local state = State.new(left, right)
  one_to_one.match(state, true)
  for _, side in ipairs(SIDES) do several.parts(state, side, false) end
  for _, side in ipairs(SIDES) do several.stacks(state, side) end
  beside.siblings(state)
  one_to_one.match(state, false)
  beside.siblings(state)
  for _, side in ipairs(SIDES) do several.parts(state, side, true) end
  beside.affine(state, is_affine)
  for _, side in ipairs(SIDES) do beside.copies(state, side) end
  layers.note(state)
  return state.rules
end

return match
