-- Reading that ranks share: each of the simulated ranks runs in a coroutine and waits for the others where they exchange.

local cbk = require "cbk"
local harness = require "harness"
local team = require "cbk.team"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

---Runs `f` as each of the ranks; what each of them returned.
local function as_ranks(ranks, f)
  local place, exchange = cbk.team_place, cbk.team_exchange
  local said, count, at, out, threads = {}, {}, nil, {}, {}
  cbk.team_place = function() return at, ranks end
  cbk.team_exchange = function(bytes)
    local round = count[at] or 1
    count[at] = round + 1
    said[round] = said[round] or {}
    said[round][at + 1] = bytes
    coroutine.yield()
    return said[round]
  end
  local fine, problem = pcall(function()
    for rank = 0, ranks - 1 do threads[rank] = coroutine.create(f) end
    for _ = 1, 3 do -- up to the first exchange, the second, the end
      for rank = 0, ranks - 1 do
        at = rank
        local went_on, result = coroutine.resume(threads[rank], rank)
        if not went_on then error(result, 0) end
        out[rank] = result
      end
    end
  end)
  cbk.team_place, cbk.team_exchange = place, exchange
  if not fine then error(problem, 0) end
  return out
end

describe("ranks that share reading", function()
  it("every item is read once, in pieces of like cost, and all know all results", function()
    local costs = { 5, 1, 1, 0, 30, 2, 2, 8, 1, 0, 9, 9, 40, 3, 3, 7 }
    local whole, largest = 0, 40
    for _, cost in ipairs(costs) do whole = whole + cost end
    for ranks = 2, 9 do
      local times, cost_of = {}, {}
      local results = as_ranks(ranks, function(rank)
        cost_of[rank] = 0
        local result = team.shared(#costs, function(n) return costs[n] end, function(n)
          times[n] = (times[n] or 0) + 1
          cost_of[rank] = cost_of[rank] + costs[n]
          return n % 3 > 0 and { n = n, big = 2LL ^ 62, nan = 0 / 0, list = { "a", { true } } } or nil
        end, {})
        local out = {}
        for n = 1, #costs do out[n] = result(n) or false end
        return out
      end)
      for n, cost in ipairs(costs) do
        equal(times[n], cost == 0 and ranks or 1)
        for rank = 0, ranks - 1 do
          local one = results[rank][n]
          if n % 3 == 0 then
            equal(one, false)
          else
            equal({ one.n, one.big, one.nan ~= one.nan, one.list }, { n, 2LL ^ 62, true, { "a", { true } } })
          end
        end
      end
      for rank = 0, ranks - 1 do equal(cost_of[rank] <= whole / ranks + largest, true, ("rank %d of %d"):format(rank, ranks)) end
    end
  end)

  it("refuse other lists, and end with the error of one that reads", function()
    raises("must see the same files", function()
      as_ranks(2, function(rank) return team.shared(3, function() return 1 end, tostring, { rank == 1 and arg[0] or nil }) end)
    end, "changed")
    raises("damaged", function()
      as_ranks(2, function() return team.shared(4, function() return 1 end, function(n) if n == 3 then error("damaged", 0) end end, {}) end)
    end, "none")
  end)
end)
