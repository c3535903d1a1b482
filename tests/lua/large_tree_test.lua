-- Trees that are large or deep; with the collector as it is, which has much to do here.

local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

describe("a large tree", function()
  it("loses many entries one by one, in any order", function()  -- a minute, were it the square of their number
    local dict, count = cbk.dict(), 40000
    for i = 1, count do dict["key." .. i] = i end
    for i = 1, count, 2 do dict["key." .. i] = nil end
    t.equal(#dict, count / 2)
    local wanted = 2
    for key, value in cbk.items(dict) do
      assert(key == "key." .. wanted and value == wanted, key)
      wanted = wanted + 2
    end
    dict["key.1"] = "back"
    for i = count, 1, -1 do dict["key." .. i] = nil end
    t.equal({ #dict, cbk.items(dict)() }, { 0 })
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
