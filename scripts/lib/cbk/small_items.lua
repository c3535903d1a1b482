-- The memory limit of SECURITY.md for commands that keep data about every item: 100 MB plus four times the size of the files.

local cbk = require "cbk"
local numbers = require "cbk.numbers"

local small_items = {}

local MEMORY, PER_BYTE, BASE = 1e8, 4, 16e6 -- BASE: of the program itself

---The number of items in checkpoints, and in a config.
---@param checkpoints Checkpoint[]
---@param config? Dict
---@return integer
function small_items.count(checkpoints, config)
  local count = config and #cbk.leaf_rows(config) or 0
  for _, checkpoint in ipairs(checkpoints) do count = count + #cbk.leaf_rows(checkpoint:raw_root()) end
  return count
end

---Fails if there are so many small items that the data about them would exceed the limit. Items of models have thousands of bytes each.
---@param count integer
---@param checkpoints Checkpoint[]|{ files: string[] }[]   the checkpoints with these items
---@param per_item integer           bytes that are kept for each item, measured
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
