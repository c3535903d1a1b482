-- The promise of SECURITY.md, for commands that keep something of every item: 100 MB, and four times the files that are read.

local cbk = require "cbk"
local numbers = require "cbk.numbers"

local small_items = {}

local MEMORY, PER_BYTE, BASE = 1e8, 4, 16e6 -- BASE: of the program itself

---How many items checkpoints have.
---@param checkpoints Checkpoint[]
---@return integer
function small_items.count(checkpoints)
  local count = 0
  for _, checkpoint in ipairs(checkpoints) do count = count + #cbk.leaf_rows(checkpoint:raw_root()) end
  return count
end

---Refuses so many small items that what is kept of each would take more. The items of models have a thousand bytes each.
---@param count integer
---@param checkpoints Checkpoint[]   that they are of
---@param per_item integer           bytes that are kept of each, measured
---@param what string                "compare them"
---@param advice string              what to try
function small_items.check(count, checkpoints, per_item, what, advice)
  local bytes = 0
  for _, checkpoint in ipairs(checkpoints) do
    for _, file in ipairs(checkpoint.files) do bytes = bytes + cbk.fs.size(file) end
  end
  if BASE + count * per_item <= MEMORY + PER_BYTE * bytes then return end
  cbk.fail("unsupported", ("%s items in %s bytes: to %s takes more memory than 100 MB and four times the files"):format(
    numbers.grouped(count), numbers.grouped(bytes), what), { advice = advice })
end

return small_items
