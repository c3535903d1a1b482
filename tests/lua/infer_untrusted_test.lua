-- What keys and configs are called never becomes code: neither while `cbk infer` tries expressions, nor in the converter that it writes.

local cbk = require "cbk"
local harness = require "harness"
local infer = require "cbk.infer"
local inferred = require "inferred"
local source = require "cbk.infer.source"

local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

--- Names that are code wherever quotes are forgotten.
local HOSTILE = {
  "hurt() or 11", 'x"}, hurt(), {"', 'x", hurt(), "', "x' .. hurt() .. '", "x\nhurt()--", "x\rhurt()--", "]] hurt() --[[", "x = hurt(), y",
  '\\"..hurt()..\\"', "num_heads\") .. hurt() --", "num heads\", hurt()) --", "head_dim', hurt(), '", "hurt()}--", "end", "x\0hurt()",
  "a.b('c')", 'a.b("c")', "it's", "'", "''", "'''x", "'x'", "[x]", "{", "{N}", "{N:2}", "*", "a.*", "'*'", "N", "a.N.'N'", "a..b", "\1#",
  "\2x", "a|b,c", "%s%d", "weights/../hurt()", "turned \226\128\174 \194\155 \255 \\226",
}

local function random(seed, ...) return cbk.randn({ ... }, { seed = seed, dtype = "float32" }) end

---Two sides that bring a name to every place of a converter: keys in all kinds of rules, fields of all kinds.
local function sides(name)
  local left, right = cbk.dict(), cbk.dict()
  left["w.weight"], right["q.weight"] = random(1, 6, 5), random(1, 6, 5)
  left[name], right["renamed" .. name] = random(2, 4, 3), random(2, 4, 3)
  left["copy" .. name] = left[name]
  right["again" .. name], right["more" .. name] = random(2, 4, 3), random(3, 3, 3)
  left[name .. ".buffer"], left["b." .. name] = cbk.full({ 11 }, 2.5), cbk.full({ 13 }, 0.5)
  right[name .. ".steps"] = cbk.full({ 11 }, 3.5)
  right[name .. ".ids"] = cbk.tensor({ { 0, 1, 2, 3, 4, 5 } }, { dtype = "int64" })
  left["n." .. name .. ".fused"] = random(4, 12, 5)
  for i = 0, 2 do right[("%s.%d"):format(name, i)] = left["n." .. name .. ".fused"]:slice(0, 4 * i, 4 * i + 4) end
  for i = 0, 2 do left[("h.%d.%s"):format(i, name)] = random(20 + i, 7, 3) end
  for i = 0, 2 do right[("layers.%d.%s"):format(i, name)] = random(20 + i, 7, 3) end
  local a = cbk.dict { hidden_size = 8, n = 17, k = 18, [name .. "s"] = 4, size = 6, [name] = 11, text = "x", pair = 29, pair2 = 29 }
  a.num_heads, a["num_heads" .. name] = 4, 4
  local b = cbk.dict { hidden_size = 8, num_heads = 4, attention_inner_dim = 24, rotary_dim = 3, m = 17, [name] = 11,
    ["f" .. name] = name, other = 29, ["other" .. name] = 29, flag = true }
  b.map = cbk.dict { [name] = 18, more = name, z = 12 }
  b["map" .. name] = cbk.dict { [name] = 5 }
  b["of" .. name] = cbk.dict { [name] = cbk.dict { [name] = 13 } }
  return { tensors = left, config = a, format = "a", source = name }, { tensors = right, config = b, format = "b", source = name }
end

describe("cbk infer of hostile names", function()
  it("runs none of them, and writes no code of them", function()
    local hurt, world = nil, setmetatable({}, { __index = _G })
    for _, name in ipairs(HOSTILE) do
      rawset(_G, "hurt", function() hurt = name end)
      world.hurt = _G.hurt
      for _, with_configs in ipairs { true, false } do
        local left, right = sides(name)
        if not with_configs then left.config, right.config = nil, nil end
        local found = infer.run(left, right, { model = name })
        equal(hurt, nil)
        local made, why = loadstring(found.text)
        is_true(made, (why or "") .. "\n" .. found.text)
        local converter = setfenv(made, world)()
        equal(hurt, nil)
        equal(converter[1].model, name)
      end
    end
    rawset(_G, "hurt", nil)
  end)

  it("converts the keys that have them, in both directions", function()
    for _, name in ipairs(HOSTILE) do
      local left, right = sides(name)
      local found = inferred.plainly(left.tensors, right.tensors, { has_same_sizes = true })
      local model, unexplained = inferred.model_of(found.text), inferred.unexplained(found)
      local given = { left = left.tensors, right = right.tensors }
      for side, other in pairs { left = "right", right = "left" } do
        local out = inferred.run_plainly(model, side, given[side])
        inferred.check_same(given[other], out, unexplained[other], ("%q from the %s"):format(name, side))
      end
      is_true(name:find "[%z\1\2]" or not next(unexplained.left), ("%q: %s"):format(name, tostring(next(unexplained.left))))
    end
  end)

  it("writes any text and number as it is", function()
    for _, text in ipairs(HOSTILE) do
      equal(assert(loadstring("return " .. source.text(text)))(), text)
      equal(cbk.shown(source.text(text)), source.text(text))
      equal(assert(loadstring("return " .. source.field("({ ... })[1]", text)))({ [text] = 7 }), 7)
      equal(assert(loadstring(("return { %s = 8 }"):format(source.key(text))))()[text], 8)
      equal(#source.comment(text):gsub("[^%c]", ""), 0)
    end
    for _, number in ipairs { 0, -1, 0.1, 1e300, 2 ^ 53, 1 / 0, -1 / 0 } do
      equal(assert(loadstring("return " .. source.number(number)))(), number)
    end
  end)
end)
