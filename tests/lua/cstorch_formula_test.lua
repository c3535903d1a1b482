-- cstorch.formula: chains of operators that pass over memory once.

local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

describe("cstorch: formulas", function()
  it("write what exists, and give their results", function()
    local x = cstorch.tensor { 1, 2, 3 }
    local word = cstorch.formula(function()
      x:mul_(2):add_(x * 0.5)
      return "done"
    end)
    equal({ word, x:tolist() }, { "done", { 3, 6, 9 } })
  end)

  it("have values of their own only inside", function()
    local x, kept = cstorch.tensor { 1, 2, 3 }, {}
    cstorch.formula(function()
      kept.sum, kept.twice = x:sum(), x * 2
      x:add_(kept.twice)
    end)
    raises("value is gone", function() kept.sum:item() end)
    raises("value is gone", function() kept.twice:tolist() end)
    equal(x:tolist(), { 3, 6, 9 })
  end)

  it("and steps give no value of a tensor that they have not returned", function()
    cstorch.testing.reset()
    cstorch.backend "CSX"
    local inner, outer
    local step = cstorch.compile_step(function(x)
      inner = (x * 2):softmax(-1)
      outer = inner:sum()
      return outer
    end)
    local loader = cstorch.utils.data.DataLoader(function() return { cstorch.tensor { 1, 2 } } end, { num_steps = 2 })
    for _, x in loader:iter() do
      local sum = step(x)
      raises("value is gone", function() return inner * 1 end)
      equal((sum + 1).device, "csx")
    end
    cstorch.testing.reset()
  end)

  it("forget the closures of a step that failed", function()
    cstorch.testing.reset()
    cstorch.backend "CSX"
    local fails, seen = true, {}
    local look = cstorch.step_closure(function(x) seen[#seen + 1] = x:item() end)
    local step = cstorch.compile_step(function(x)
      local sum = x:sum()
      look(sum)
      if fails then error "failed" end
      return sum
    end)
    local loader = cstorch.utils.data.DataLoader(function() return { cstorch.tensor { 1, 2 } } end, { num_steps = 2 })
    for _, x in loader:iter() do
      if fails then raises("failed", function() step(x) end) end
      fails = false
      step(x)
    end
    equal(seen, { 3, 3 })
    cstorch.testing.reset()
  end)

  it("write a value after the last read of what it replaces", function()
    local p, difference = cstorch.tensor { 1, 2, 3 }, cstorch.zeros { 3 }
    cstorch.formula(function()
      local new = p * 2
      local change = new - p
      p:copy_(new)
      difference:copy_(change)
    end)
    equal({ p:tolist(), difference:tolist() }, { { 2, 4, 6 }, { 1, 2, 3 } })
  end)

  it("round after each operation, as one operator after the other does", function()
    cstorch.manual_seed(1)
    local a, b, c, one = cstorch.rand { 1000 }, cstorch.rand { 1000 }, cstorch.rand { 1000 }, cstorch.tensor(0.3)
    local function results()
      local list = {}
      for _, x in ipairs { a, one } do
        for _, y in ipairs { b, one } do
          for _, z in ipairs { c, one } do
            for _, value in ipairs {
              x * y + z, z + x * y, x * y * z, x * y - z, z - x * y, (x + y) * z, z / (x + y), (x / y) * z, x:sqrt() + z,
            } do
              list[#list + 1] = value + a * 0
            end
          end
        end
      end
      return list
    end
    local expected, kept = results(), {}
    for i = 1, #expected do kept[i] = cstorch.zeros { 1000 } end
    cstorch.formula(function()
      for i, value in ipairs(results()) do kept[i]:copy_(value) end
    end)
    for i = 1, #expected do equal(kept[i]:tolist(), expected[i]:tolist()) end
  end)

  it("run early where a value is read", function()
    local x, seen = cstorch.tensor { 1, 2 }, nil
    cstorch.formula(function()
      x:add_(1)
      local sum = x:sum()
      seen = sum:item()
      x:mul_(seen)
    end)
    equal({ seen, x:tolist() }, { 5, { 10, 15 } })
  end)

  it("do nothing when they fail", function()
    local x = cstorch.tensor { 1, 2 }
    raises("stop", function()
      cstorch.formula(function()
        x:add_(1)
        error "stop"
      end)
    end)
    equal(x:tolist(), { 1, 2 })
    x:add_(1) -- and nothing is recorded any more
    equal(x:tolist(), { 2, 3 })
  end)
end)
