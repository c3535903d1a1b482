-- What a report says of a checkpoint of a run: its step, learning rate and loss scale, the hyper-parameters, and other plain values.

local fold = require "cbk.fold"
local listing = require "cbk.listing"
local optimizer_table = require "cbk.optimizer_table"
local page = require "cbk.page"
local training_state = require "cbk.training_state"

local training = {}

local MOST_VALUES = 200

---@param rows LeafRows
---@param optimizers Optimizer[]
---@return { [1]: string, [2]: string }[]   cards: what, value
function training.cards(rows, optimizers)
  local out = {}
  local step, step_text = training_state.step(rows)
  if step then out[1] = { (step:gsub("_", " ")), step_text } end
  for _, optimizer in ipairs(optimizers) do
    local rates = training_state.learning_rates(optimizer)
    if rates then out[#out + 1] = { "learning rate", optimizer_table.values_text(rates) } end
  end
  local scale = training_state.loss_scale(rows)
  if scale then out[#out + 1] = { "loss scale", scale } end
  return out
end

---@param optimizer Optimizer
local function hyper_parameters_html(optimizer)
  local cells = {}
  for i, one in ipairs(optimizer_table.hyper_parameters(optimizer)) do cells[i] = { one.name, optimizer_table.values_text(one.values) } end
  return page.table { titles = { fold.shown(optimizer_table.groups_path(optimizer)), "value, of each group" }, rows = cells }
end

---Sections about the optimizers, and plain values that are not theirs.
---@param rows LeafRows
---@param optimizers Optimizer[]
---@return { title: string, html: string }[]
function training.sections(rows, optimizers)
  local out, tables, cells, more = {}, {}, {}, 0
  for i, optimizer in ipairs(optimizers) do tables[i] = hyper_parameters_html(optimizer) end
  if #tables > 0 then out[1] = { title = "Hyper-parameters", html = table.concat(tables, "\n") } end
  local others = #optimizers > 0 and optimizer_table.others(rows, optimizers) or rows
  for i = 1, #others do
    local text = listing.plain_text(others:raw(i))
    if text and #cells == MOST_VALUES then more = more + 1 elseif text then cells[#cells + 1] = { fold.shown(others:path(i)), text } end
  end
  if #cells > 0 then out[#out + 1] = { title = "Values", html = page.table { titles = { "key", "value" }, rows = cells, more = more } } end
  return out
end

return training
