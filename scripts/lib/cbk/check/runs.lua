-- Texts for rows and columns that a scan lists as runs of numbers.

local numbers = require "cbk.numbers"

local runs = {}

---@class Runs   How many rows or columns, and the first runs of them, each { first, last }.
---@field count integer

---"4, 17 and 90 to 95"; with ", …" at the end if there are more.
---@param list Runs
---@return string
function runs.text(list)
  local parts, listed = {}, 0
  for i, run in ipairs(list) do
    parts[i] = run[1] == run[2] and numbers.grouped(run[1]) or ("%s to %s"):format(numbers.grouped(run[1]), numbers.grouped(run[2]))
    listed = listed + run[2] - run[1] + 1
  end
  if listed < list.count then return table.concat(parts, ", ") .. ", …" end
  local last = table.remove(parts)
  return #parts == 0 and last or table.concat(parts, ", ") .. " and " .. last
end

return runs
