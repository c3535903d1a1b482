-- Reading that the ranks of a team share (`mpirun -n 4 cbk stats …`): each reads a part of the items, and all know all results.

local buffer = require "string.buffer"
local cbk = require "cbk"

local team = {}

---The items of a rank: one piece of the list, so that a file is read by few of them. All pieces cost about the same.
---@param count integer
---@param cost fun(n: integer): number
---@return integer first, integer last
local function piece(count, cost, rank, ranks)
  local total, before, first, last = 0, 0, count + 1, count
  for n = 1, count do total = total + cost(n) end
  for n = 1, count do
    local middle = before + cost(n) / 2
    before = before + cost(n)
    if middle * ranks >= total * rank then first = math.min(first, n) end
    if middle * ranks >= total * (rank + 1) then
      last = n - 1
      break
    end
  end
  return first, rank == ranks - 1 and count or last
end

--- All ranks see the same files.
local function check_same(files)
  local own = cbk.file_digest(files)
  for rank, other in ipairs(cbk.team_exchange(own)) do
    if other ~= own then
      cbk.fail("changed", ("rank %d sees other files than this one under the same names: all must see the same files"):format(rank - 1))
    end
  end
end

---A function like `read`. A process that is alone reads when it is asked, and so do ranks what costs nothing. Of the rest each rank
---reads its part at once, and they exchange what they found: all have to call this, with the same list.
---@generic T
---@param count integer
---@param cost fun(n: integer): number   what reading an item costs, in bytes
---@param read fun(n: integer): T        nil, or a number, string or table of these
---@param files string[]                 those that are read
---@return fun(n: integer): T
function team.shared(count, cost, read, files)
  local rank, ranks = cbk.team_place()
  if ranks == 1 then return read end
  check_same(files)
  local first, last = piece(count, cost, rank, ranks)
  local mine, results = {}, {}
  for n = first, last do mine[n - first + 1] = cost(n) > 0 and buffer.encode { read(n) } end
  for _, of_rank in ipairs(cbk.team_exchange(buffer.encode(mine))) do
    for _, result in ipairs(buffer.decode(of_rank)) do results[#results + 1] = result end
  end
  if #results ~= count then cbk.fail("internal", "the ranks have read different tensors") end
  return function(n)
    if results[n] then return buffer.decode(results[n])[1] end
    return read(n)
  end
end

return team
