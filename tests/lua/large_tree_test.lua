-- Trees that are large or deep; with the collector as it is, which has much to do here.

local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

describe("a large tree", function()
  it("loses many entries one by one, in any order", function()  -- a minute, were it the square of their number
    local dict, count = cbk.dict(), 40000
    for i = 1, count do dict["key." .. i] = i end
    for i = 1, count, 2 do dict["key." .. i] = nil end
    t.equal(cbk.count(dict), count / 2)
    local wanted = 2
    for key, value in cbk.items(dict) do
      assert(key == "key." .. wanted and value == wanted, key)
      wanted = wanted + 2
    end
    dict["key.1"] = "back"
    for i = count, 1, -1 do dict["key." .. i] = nil end
    t.equal({ #dict, cbk.items(dict)() }, { 0 })
  end)

  it("takes the same key again and again while it is iterated", function()  -- also for a pinned dict
    for _, others in ipairs { 0, 20 } do
      local dict = cbk.dict { first = 1 }
      for i = 1, others do dict["other." .. i] = i end
      local start = os.clock()
      local items = cbk.items(dict)
      for i = 1, 100000 do
        dict.key = i
        dict.key = nil
      end
      t.equal((items()), "first")
      assert(os.clock() - start < 2, "quadratic")
      dict.key = "last"
      t.equal({ cbk.count(dict), dict.key, dict.first }, { others + 2, "last", 1 })
    end
  end)

  it("may hold a list in very many places", function()
    local makes = {
      function(value) return cbk.list { value, value } end,
      function(value) return cbk.tuple { value, value } end,
      function(value) return cbk.dict { { "a", value }, { "b", value } } end,
    }
    for _, make in ipairs(makes) do
      local function doubled(leaf)
        local tree = leaf
        for _ = 1, 60 do tree = make(tree) end
        return tree
      end
      local tree = doubled(1)
      t.is_true(cbk.equal(tree, doubled(1)))
      t.is_true(not cbk.equal(tree, doubled(2)))
      t.is_true(cbk.equal(tree, cbk.deep_copy(tree)))
      for _, unfold in ipairs { cbk.json, cbk.totable } do t.raises("in several places", function() unfold(tree) end, "value") end
    end
    t.raises("lists; give a flat list", function()
      local list = cbk.list()
      for _ = 1, 60 do list = cbk.list { list, list } end
      cbk.tensor(list)
    end, "value")
    t.raises("in several places", function()
      local tables = { 1 }
      for _ = 1, 60 do tables = { tables, tables } end
      cbk.list(tables)
    end, "value")
    local row = cbk.list { 1, 2 }
    local rows = cbk.list { row, row, row }
    t.equal({ cbk.json(rows), #cbk.totable(rows), cbk.tensor(rows):numel() }, { "[[1, 2], [1, 2], [1, 2]]", 3, 6 })
  end)

  it("may be nested as deep as memory allows, and goes again", function()
    local kinds = { function(tree) return cbk.list { tree } end, function(tree) return cbk.tuple { tree } end, function(tree)
      local dict = cbk.dict()
      dict.a = tree
      return dict
    end }
    for _, around in ipairs(kinds) do
      local tree = cbk.list { 1 }
      for _ = 1, 100000 do tree = around(tree) end
      for name, deep in pairs { copied = cbk.deep_copy, nested = cbk.json, levels = cbk.totable, deeper = cbk.leaves } do
        t.raises(name, function() deep(tree) end, "value")
      end
      t.raises("deeper", function() cbk.equal(tree, around(tree)) end, "value")
      t.is_true(#cbk.inspect.text(tree) < 1000)
      t.equal(cbk.find(tree, ("0."):rep(3000) .. "0"), nil)
      tree = nil
      collectgarbage()
    end
  end)
end)
