-- Rows of embeddings and heads that were never trained: words that no text had, and padding behind the vocabulary.

local layers = require "cbk.check.layers"
local numbers = require "cbk.numbers"
local runs = require "cbk.check.runs"

local vocabulary = {}

-- The share of the median RMS below which a row was not trained. Trained rows of GPT-2 and LLaMA differ by a factor of 3; rows
-- that decayed or kept a small initial value are hundreds of times smaller.
vocabulary.QUIET = 1 / 20

local NAMES = { "embed", "wte", "lm_head", "^shared%.weight$", "^output%.weight$" }
local OTHERS = { "pos", "wpe", "type", "patch", "time", "lora" }
local LEAST_ROWS = 32
local LEAST_FOUND = 2 -- one zero row is usually that of the padding token

local function has_any(text, patterns)
  for _, pattern in ipairs(patterns) do
    if text:find(pattern) then return true end
  end
  return false
end

---Whether a tensor has a row for each word, by its name. Embeddings inside of layers are of other things.
---@param key string
local function is_vocabulary(key)
  local name = key:lower()
  return #layers.places(key) == 0 and has_any(name, NAMES) and not has_any(name, OTHERS)
end

---Reports rows that were never trained.
---@param one CheckedTensor
---@param found Findings
function vocabulary.check(one, found)
  local odd = one.scan.odd_rows
  if not odd or one.scan.constant ~= nil or odd.rows < LEAST_ROWS or not is_vocabulary(one.key) then return end
  local parts = {}
  local function add(kind, text)
    if odd[kind] and odd[kind].count >= LEAST_FOUND then
      parts[#parts + 1] = ("%s %s (%s)"):format(numbers.grouped(odd[kind].count), text, runs.text(odd[kind]))
    end
  end
  add("zero", "are 0")
  add("quiet", ("have an RMS below 1/%d of the median, which is %.3g"):format(1 / vocabulary.QUIET, odd.median))
  add("repeated", "are equal to the row beside them")
  if #parts == 0 then return end
  found:add("untrained-rows", one.file, one.key, ("of %s, %s"):format(numbers.counted(odd.rows, "row"), table.concat(parts, "; ")))
end

return vocabulary
