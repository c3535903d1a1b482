-- Actions on fused and rotary projections: what goes where by the heads that the config says, and what contradicts it is refused.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local actions = require "converters.vocabulary.actions"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises
local counted = conversion.counted

---@param groups? integer   key heads, where there are fewer than the four heads
local function config(groups, more)
  local out = conversion.with(cbk.dict { hidden_size = 8, num_heads = 4, rotary_dim = 2 }, more)
  if groups then
    out.attention_module, out.extra_attention_params = "multiquery_attention", cbk.dict { num_kv_groups = groups }
  end
  return out
end

---The numbers of the rows of a matrix, or of a vector, whose elements are counted from 1.
local function rows(t)
  local out, width = {}, t:numel() / t:shape()[1]
  for i, first in ipairs(t:reshape({ t:shape()[1], width }):slice(1, 0, 1):reshape({ -1 }):tolist()) do out[i] = (first - 1) / width end
  return out
end

local function range(from, to)
  local out = {}
  for i = from, to do out[#out + 1] = i end
  return out
end

---@param made Tensor|Tensor[]
local function all_rows(made)
  if type(made) ~= "table" then return rows(made) end
  local out = {}
  for i, part in ipairs(made) do out[i] = rows(part) end
  return out
end

local qkv, rotary = actions.qkv, actions.rotary

describe("Joined tensors", function()
  local layouts = require "converters.vocabulary.layouts"
  local joined = layouts.joined(0, function(at) return at.count end)

  it("are of one size, there and back", function()
    local parts = joined.backward(cbk.tensor { 0, 1, 2, 3, 4, 5 }, { count = 3 })
    equal(joined.forward(parts):tolist(), { 0, 1, 2, 3, 4, 5 })
    local unequal = { cbk.tensor { 1, 2 }, cbk.tensor { 1, 2, 3 } }
    raises("expected parts of one size in dimension 0, found 2 (part 0) and 3 (part 1)", function() joined.forward(unequal) end)
    local six = cbk.tensor { 0, 1, 2, 3, 4, 5 }
    raises("6 in dimension 0 do not split into 4 parts", function() joined.backward(six, { count = 4 }) end)
  end)

  it("are stacks behind each other, there and back", function()
    local parts = {}
    for i = 1, 6 do parts[i] = cbk.tensor({ { 2 * i, 2 * i + 1, 0 } }) end -- 3 gates, then 3 others, each (1, 3)
    for _, case in ipairs { { 1, false, { 3, 2, 3 } }, { 2, false, { 3, 1, 6 } }, { 2, true, { 3, 3, 2 } } } do
      local stacks = layouts.joined_stacks(2, case[1], case[2])
      local one = stacks.forward(parts)
      equal(one:shape(), case[3])
      for i, part in ipairs(stacks.backward(one)) do equal(part:tolist(), parts[i]:tolist()) end
    end
    equal(layouts.joined_stacks(2, 1).forward(parts):tolist()[2], { { 4, 5, 0 }, { 10, 11, 0 } })
    raises("3 in dimension 1 do not split into 2 parts", function()
      layouts.joined_stacks(2, 1).backward(cbk.full({ 2, 3, 1 }, 0, { dtype = "float32" }))
    end)
  end)
end)

describe("Layouts", function()
  local layouts = require "converters.vocabulary.layouts"
  local function returns(value) return function() return value end end

  it("refuse rotated rows that a head does not have, and numbers that functions do not give", function()
    local t = counted({ 8, 2 }, 0)
    for part, action in pairs {
      ["an even number, at most the head's size 4, not 6"] = layouts.rotary_rows(4, returns(6)),
      ["at most the head's size 4, not 3"] = layouts.rotary_rows(returns(4), 3),
      ["the size of a head must be a whole number of at least 1, not nothing"] = layouts.rotary_rows(returns(nil)),
      ["the number of rotated rows must be a whole number of at least 1, not 0"] = layouts.rotary_rows(4, returns(0)),
      ["at most the head's size 2, not 4"] = layouts.fused { per = { 1, 1 }, rotary = returns { 2, 4 } },
      ["rotary must be a list of a head's size"] = layouts.fused { per = { 1, 1 }, rotary = returns(nil) },
      ["groups must be a whole number of at least 1, not nothing"] = layouts.fused { per = { 1, 1 }, groups = returns(nil) },
      ["per has 3 shares for 2 parts"] = layouts.fused { per = returns { 1, 1, 2 }, parts = 2 },
    } do
      raises(part, function() action.forward(t, {}) end)
    end
    raises("at most its 2 rows, found 4", function() rotary.queries.forward(t, { right = config(nil, { rotary_dim = 4 }) }) end)
  end)

  it("that are reversed need as many keys, the other way round", function()
    local rules, two = require "converters.engine.rules", { "a", "b" }
    local reversed = layouts.reversed(actions.split(2))
    raises("'split' needs 2 keys on the left and one on the right", function() rules.keys { { "a", "b", reversed } } end)
    equal(layouts.cast("fp32", "float16").forward(cbk.tensor({ 1 }, { dtype = "float32" }), {}).dtype, "float16")
    local cast = layouts.cast("int8", "int8", reversed)
    equal(#rules.keys { { two, "c", reversed }, { "c", two, layouts.reversed(reversed) }, { two, "d", cast } }, 3)
    raises("'split' needs 2 keys", function() rules.keys { { "c", two, reversed } } end)
  end)

  it("keep further dimensions, or refuse them", function()
    local t = counted({ 8, 2, 1 }, 0)
    local fused = layouts.fused { per = { 1, 3 }, groups = 2 }
    local parts = fused.forward(t, {})
    equal({ parts[1]:shape(), parts[2]:shape() }, { { 2, 2, 1 }, { 6, 2, 1 } })
    equal(fused.backward(parts, {}):shape(), { 8, 2, 1 })
    local grouped, at = qkv.grouped(function() return 2 end, { rotary = false }), { right = config(2) }
    local whole = counted({ 16, 8, 1 }, 0)
    equal(grouped.forward(whole, at)[1]:shape(), { 8, 8, 1 })
    equal(grouped.backward(grouped.forward(whole, at), at):shape(), { 16, 8, 1 })
    local copy = actions.pair("copy", function(one) return one end, function(one) return one end)
    for _, action in ipairs { actions.transpose, layouts.transposed(copy), layouts.fused { per = { 1, 1 }, columns = true }, qkv.conv1d } do
      raises("expected a matrix to transpose, found a tensor of 3 dimensions", function() action.forward(t, at) end)
    end
    raises("expected a matrix to transpose", function() layouts.stacked(0, true).forward { t, t } end)
    raises("expected a tensor of 2 dimensions, found 3", function() layouts.first_row_last(2).forward(t) end)
    raises("expected a tensor of 2 dimensions, found 3", function() layouts.first_row_last(2).backward(t) end)
  end)
end)

describe("Buffers: numbers", function()
  local buffers = require "converters.vocabulary.buffers"

  it("are exact", function()
    equal(buffers.numbered({ 256 }, "bfloat16"):to("float32"):tolist()[256], 255)
    raises("bfloat16 does not have every number up to 2999", function() buffers.numbered({ 3000 }, "bfloat16") end)
    raises("", function() buffers.numbered({ 300 }, "int8") end)
  end)
end)

describe("Actions: heads", function()
  local inner = { attention_inner_dim = 16 }
  local cases = { -- what the left has, and what its rows become
    { "stacked, a key for each query", qkv.stacked, config(), { 24, 8 }, { range(0, 7), range(8, 15), range(16, 23) } },
    { "stacked biases", qkv.stacked, config(), { 24 }, { range(0, 7), range(8, 15), range(16, 23) } },
    { "stacked, grouped queries", qkv.stacked, config(2), { 16, 8 }, { range(0, 7), range(8, 11), range(12, 15) } },
    { "stacked, grouped biases", qkv.stacked, config(1), { 12 }, { range(0, 7), range(8, 9), range(10, 11) } },
    { "stacked, wider heads", qkv.stacked, config(1, inner), { 24, 8 }, { range(0, 15), range(16, 19), range(20, 23) } },
    { "Conv1D biases", qkv.conv1d, config(), { 24 }, { range(0, 7), range(8, 15), range(16, 23) } },
    { "group by group", qkv.grouped(function() return 2 end, { rotary = false }), config(2), { 16, 8 },
      { { 0, 1, 2, 3, 8, 9, 10, 11 }, { 4, 5, 12, 13 }, { 6, 7, 14, 15 } } },
    { "rotary queries", rotary.queries, config(2, { hidden_size = 16, rotary_dim = 4 }), { 16, 8 },
      { 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15 } },
    { "rotary biases of keys", rotary.keys, config(2, { hidden_size = 16, rotary_dim = 4 }), { 8 }, { 0, 2, 1, 3, 4, 6, 5, 7 } },
    { "a rotary vector", rotary.vector, config(2, { hidden_size = 16, rotary_dim = 4 }), { 4 }, { 0, 2, 1, 3 } },
  }
  for _, case in ipairs(cases) do
    local name, action, right, shape, want = unpack(case)
    it(name, function()
      local t, at = counted(shape, 0), { right = right }
      local made = action.forward(t, at)
      equal(all_rows(made), want)
      equal(action.backward(made, at):tolist(), t:tolist())
    end)
  end

  it("rows that the config contradicts are refused in either direction", function()
    local plain, half = config(), config(2)
    local q, k = counted({ 8, 8 }, 0), counted({ 4, 8 }, 0)
    for _, case in ipairs {
      -- Phi-3-medium's shape of things: of equal thirds, each would be wrong
      { "expected 16 rows (4 + 2 + 2 heads of 2: hidden_size 8 / num_heads 4, num_kv_groups 2), found 24", qkv.stacked,
        half, counted({ 24, 8 }, 0) },
      { "expected 24 rows (4 + 4 + 4 heads of 2: hidden_size 8 / num_heads 4), found 16", qkv.stacked, plain, counted({ 16, 8 }, 0) },
      { "), found 25; check", qkv.stacked, plain, counted({ 25 }, 0) },
      { "expected 24 rows (4 + 4 + 4 heads of 2: ", qkv.conv1d, plain, counted({ 4, 12 }, 0) },
      { "), found 12; check", qkv.conv1d, plain, counted({ 12 }, 0) },
      { "expected 8 inputs (hidden_size), found 4", qkv.conv1d, plain, counted({ 4, 24 }, 0) },
      { "expected 8 inputs (hidden_size), found 4", qkv.stacked, plain, counted({ 24, 4 }, 0) },
      { "expected 8 inputs (hidden_size), found 4", qkv.grouped(qkv.heads), plain, counted({ 24, 4 }, 0) },
      { "the config has no 'num_heads'", qkv.stacked, cbk.dict { hidden_size = 8 }, counted({ 24, 8 }, 0) },
      { "hidden_size 8 is not a multiple of num_heads 3", qkv.stacked, config(nil, { num_heads = 3 }), counted({ 24, 8 }, 0) },
      { "expected 8 rows (4 heads of 2: ", rotary.queries, half, k },
      { "expected 4 rows (2 heads of 2: hidden_size 8 / num_heads 4, num_kv_groups 2), found 8", rotary.keys, half, q },
      { "expected 2 rows (1 head of 2: ", rotary.vector, plain, counted({ 8 }, 0) }, -- a bias of queries
      { "a scalar has no rows", rotary.vector, plain, counted({}, 0) },
      { "a scalar has no rows", actions.split(2), plain, counted({}, 0) },
      { "5 rows do not split into 2 parts", actions.split(2), plain, counted({ 5 }, 0) },
    } do
      raises(case[1], function() case[2].forward(case[4], { right = case[3] }) end)
    end
    for _, case in ipairs {
      { "expected 4 rows (2 heads of 2: ", qkv.stacked, half, { q, q, k } },
      { "expected 8 rows (4 heads of 2: ", qkv.stacked, plain, { k, q, q } },
      { "expected 8 inputs (hidden_size), found 4", qkv.stacked, plain, { q, counted({ 8, 4 }, 0), q } },
      { "expected 8 rows (4 heads of 2: ", qkv.conv1d, plain, { q, q, k } },
      { "expected 2 rows (1 head of 2: ", rotary.vector, plain, counted({ 8 }, 0) },
      { "parts of 8 and 4 rows are not equal", actions.split(2), plain, { q, k } },
    } do
      raises(case[1], function() case[2].backward(case[4], { right = case[3] }) end)
    end
  end)

  it("a Conv1D is transposed", function()
    local at, t = { right = config() }, counted({ 8, 24 }, 0)
    local q, k, v = unpack(qkv.conv1d.forward(t, at))
    for i, part in ipairs { q, k, v } do
      equal(part:shape(), { 8, 8 })
      equal(part:tolist()[1], t:transpose(0, 1):tolist()[8 * i - 7])
    end
    equal(qkv.conv1d.backward({ q, k, v }, at):tolist(), t:tolist())
  end)
end)
