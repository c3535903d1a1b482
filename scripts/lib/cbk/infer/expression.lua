-- The language of an inferred converter: the modules that its expressions may name, and the value of an expression. What is tried on the
-- tensors is the text that is written.

local source = require "cbk.infer.source"

local expression = {}

---What an expression may name, in the order of a converter's file.
local MODULES = {
  { "cbk", "cbk", require "cbk" },
  { "rules", "converters.engine.rules", require "converters.engine.rules" },
  { "fields", "converters.engine.fields", require "converters.engine.fields" },
  { "actions", "converters.vocabulary.actions", require "converters.vocabulary.actions" },
  { "heads", "converters.vocabulary.heads", require "converters.vocabulary.heads" },
  { "rotary", "converters.vocabulary.rotary", require "converters.vocabulary.rotary" },
  { "values", "converters.vocabulary.values", require "converters.vocabulary.values" },
  { "kinds", "converters.engine.kinds", require "converters.engine.kinds" },
  { "layouts", "converters.vocabulary.layouts", require "converters.vocabulary.layouts" },
  { "counts", "converters.vocabulary.counts", require "converters.vocabulary.counts" },
  { "buffers", "converters.vocabulary.buffers", require "converters.vocabulary.buffers" },
  { "evidence", "converters.vocabulary.evidence", require "converters.vocabulary.evidence" },
}

local IN_PAIR = [[
-- The pair that this converter was inferred from shows numbers such as the size of a head, but not whether other checkpoints have the
-- same ones. A wrong number would go unnoticed, so other shapes are refused where one counts. If your checkpoints have the same numbers,
-- set this to true (`cbk infer --same-sizes` does). If not, infer the converter again, with configs that give them.
local has_same_sizes = %s
local in_pair = evidence.known(has_same_sizes)

]]

local function names(text, module) return text:find("%f[%w_.]" .. module .. "%.") ~= nil end

---A converter's text with the modules that it names.
---@param text string
---@param has_same_sizes boolean   other checkpoints have the same numbers as the pair
---@return string
function expression.file(text, has_same_sizes)
  if names(text, "in_pair") then text = IN_PAIR:format(tostring(has_same_sizes)) .. text end
  local head = {}
  for _, module in ipairs(MODULES) do
    if names(text, module[1]) then head[#head + 1] = ("local %s = require %s\n"):format(module[1], source.text(module[2])) end
  end
  return table.concat(head) .. "\n" .. text
end

local modules -- by their names in expressions

local MOST_EVALUATED = 512
local evaluated, evaluated_count = {}, 0 -- a cache: the same few expressions are tried on many tensors

---The value of an expression.
---@param text string
---@return Action|function|nil
function expression.value(text)
  if not modules then
    modules = { type = type, table = table, math = math, ipairs = ipairs, unpack = unpack, tonumber = tonumber }
    for _, module in ipairs(MODULES) do modules[module[1]] = module[3] end
    modules.in_pair = modules.evidence.known(false)
  end
  if evaluated[text] == nil then
    if evaluated_count == MOST_EVALUATED then evaluated, evaluated_count = {}, 0 end
    evaluated[text] = setfenv(assert(loadstring("return " .. text, "=" .. text)), modules)() or false
    evaluated_count = evaluated_count + 1
  end
  return evaluated[text] or nil
end

return expression
