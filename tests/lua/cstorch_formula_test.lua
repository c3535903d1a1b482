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
