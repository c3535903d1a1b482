-- `cbk infer` with pairs that are less than clean: layers that count differently, ties, constants, tensors that one side lacks, other
-- weights. A converter is right for a larger model, or refuses it.

local cbk = require "cbk"
local harness = require "harness"
local infer = require "cbk.infer"
local inferred = require "inferred"

local describe, it, is_true = harness.describe, harness.it, harness.is_true

local function full(value, ...) return cbk.full({ ... }, value, { dtype = "float32" }) end

local function transposed(t) return t:transpose(0, 1) end

---@class Made   A model in two layouts.
---@field left Dict
---@field right Dict
---@field random fun(...: integer): Tensor
---@field put fun(left: string|nil, right: string|nil, tensor: Tensor, change: nil|fun(t: Tensor): Tensor)

---@param seed integer
---@return Made
local function new_model(seed)
  local model = { left = cbk.dict(), right = cbk.dict() }
  function model.random(...)
    seed = seed + 1
    return cbk.randn({ ... }, { seed = seed, dtype = "float32" })
  end
  function model.put(left, right, tensor, change)
    if left then model.left[left] = tensor end
    if right then model.right[right] = change and change(tensor) or tensor end
  end
  return model
end

---Some layers, with what a case adds to each and to the whole.
---@param case { first: integer|nil, each: nil|fun(model: Made, left: string, right: string, i: integer, width: integer),
---whole: nil|fun(model: Made, width: integer) }
---@return Made
local function layers(count, width, case)
  local model = new_model(100 * count)
  model.put("wte.weight", "tok.emb", model.random(11, width))
  for i = 0, count - 1 do
    local left, right = ("h.%d."):format(i + (case.first or 0)), ("blocks.%d."):format(i)
    model.put(left .. "q.weight", right .. "attn.wq", model.random(width, width), transposed)
    model.put(left .. "q.bias", right .. "attn.bq", full(0, width))
    model.put(left .. "ln.weight", right .. "norm", model.random(width))
    if case.each then case.each(model, left, right, i, width) end
  end
  if case.whole then case.whole(model, width) end
  return model
end

---What a converter of one model does with another: "equal", "different: …", or its refusal; from the left, and from the right.
---@param seen Made
---@param other Made
---@param options? table
---@return string, string, Inferred
local function outcomes(seen, other, options)
  local found, out = inferred.plainly(seen.left, seen.right, options), {}
  local excused = inferred.unexplained(found)
  for place, side in ipairs { "left", "right" } do
    local wanted = side == "left" and "right" or "left"
    local fine, got, unmatched = pcall(inferred.run_plainly, inferred.model_of(found.text), side, other[side])
    if not fine then
      out[place] = type(got) == "table" and got.message or tostring(got)
    elseif #unmatched > 0 then
      out[place] = "unmatched " .. unmatched[1]
    else
      local is_same, why = pcall(inferred.check_same, other[wanted], got, excused[wanted], "")
      out[place] = is_same and "equal" or "different: " .. tostring(why)
    end
  end
  return out[1], out[2], found
end

---Whether a converter of one model is right for another.
local function check_equal(seen, other, options)
  local from_left, from_right = outcomes(seen, other, options)
  harness.equal({ from_left, from_right }, { "equal", "equal" })
end

---Both outcomes of a small model's converter for a larger one.
---@param case table       of both, or of the small one
---@param larger? table    of the larger one
---@param left string      how the outcome begins, or what it contains
local function check(case, larger, left, right)
  local from_left, from_right = outcomes(layers(3, 8, case), layers(5, 12, larger or case))
  is_true(from_left:find(left, 1, true), from_left)
  is_true(from_right:find(right, 1, true), from_right)
end

---Some layers have one tensor more, which counts by itself on the right.
local function in_layers(list)
  return { each = function(model, left, _, i, width)
    for k, n in ipairs(list) do
      if n == i then model.put(left .. "cross.w", ("cross.%d.w"):format(k - 1), model.random(width, 5)) end
    end
  end }
end

describe("cbk infer, noise", function()
  it("counts layers from another number", function()
    check({ first = 1 }, nil, "equal", "equal")
    check({ first = 3 }, nil, "equal", "equal")
  end)

  it("refuses other numbers of layers where only some have a tensor", function()
    local why = "its number is another one on the other side"
    check(in_layers { 0, 2 }, in_layers { 0, 2, 4 }, why, why)
    check(in_layers { 0, 2 }, in_layers { 0, 3 }, "unmatched h.3.cross.w", why)
    check(in_layers { 1, 2 }, in_layers { 1, 3 }, why, why)
    check({ whole = function(model, width)
      local last = 0
      for key in cbk.items(model.left) do last = math.max(last, tonumber(key:match "^h%.(%d+)" or 0)) end
      model.put(("h.%d.final"):format(last + 1), "final", model.random(width))
    end }, nil, "unmatched", why)
  end)

  it("compares further names of a tensor, which may be transposed", function()
    local function tied(change, is_untied)
      return { whole = function(model, width)
        model.put(nil, "head", is_untied and model.random(11, width) or model.left["wte.weight"], change)
      end }
    end
    check(tied(), nil, "equal", "equal")
    check(tied(transposed), nil, "equal", "equal")
    check(tied(), tied(nil, true), "different", "it is another name of 'tok.emb' in the pair, and has other values here")
    check(tied(transposed), tied(transposed, true), "different", "it is another name of 'tok.emb'")
  end)

  it("drops nothing but what it can make again", function()
    local function extra(value)
      return { each = function(model, left, _, _, width)
        model.put(left .. "extra.weight", nil, value and full(value, width) or model.random(width))
      end }
    end
    check(extra(1), extra(), "its values cannot be made again on the way back", "has 1 in all of 8")
    check(extra(0), extra(), "its values cannot be made again on the way back", "has 0 in all of 8")
  end)

  it("refuses matrices whose order the pair does not show, and factors", function()
    local function square(value, change)
      return { each = function(model, left, right, _, width)
        model.put(left .. "out.weight", right .. "wo", value and full(value, width, width) or model.random(width, width), change)
      end }
    end
    check(square(0), square(nil, transposed), "their order in the other layout is unknown", "their order in the other layout is unknown")
    local function scaled(t) return t * (1 / t:shape()[1]) end
    check(square(nil, scaled), nil, "a factor of 0.125", "a factor of 0.125")
  end)

  it("finds transposed rotary rows, fused or not, in either direction", function()
    local function halves(t) return t:reshape({ t:shape()[1] / 8, 2, 4, -1 }):permute({ 0, 2, 1, 3 }):reshape(t:shape()) end
    local function pairs_of(t) return t:reshape({ t:shape()[1] / 8, 4, 2, -1 }):permute({ 0, 2, 1, 3 }):reshape(t:shape()) end
    for _, rotated in ipairs { halves, pairs_of } do
      local function model_of(width)
        local model = new_model(width)
        model.put("o.weight", "wo", model.random(width, width), function(t) return rotated(t):transpose(0, 1) end)
        for _, name in ipairs { "q", "k", "v" } do model.left[name] = model.random(width, width) end
        local left = model.left
        model.right.fused = cbk.cat({ rotated(left.q), rotated(left.k), left.v }, 0):transpose(0, 1)
        model.right.kv = cbk.cat({ rotated(left.k) + 1, left.v + 1 }, 0)
        model.left.k2, model.left.v2 = left.k + 1, left.v + 1
        return model
      end
      local from_left, from_right = outcomes(model_of(16), model_of(24), { has_same_sizes = true })
      harness.equal({ from_left, from_right }, { "equal", "equal" })
      local refused = outcomes(model_of(16), model_of(24))
      is_true(refused:find("heads of 8 rows", 1, true), refused)
    end
  end)

  it("counts experts in the checkpoint, and refuses layers with different numbers of them", function()
    local function model_of(counts, seed)
      local model = new_model(seed)
      for i, count in ipairs(counts) do
        local parts = {}
        for e = 1, count do
          parts[e] = model.random(6, 4)
          model.left[("layers.%d.expert_%02d.up.weight"):format(i - 1, e - 1)] = parts[e]
        end
        model.put(("layers.%d.gate"):format(i - 1), ("h.%d.router"):format(i - 1), model.random(5, 4))
        model.right[("h.%d.up"):format(i - 1)] = cbk.stack(parts, 1)
      end
      return model
    end
    local function swapped(model) return { left = model.right, right = model.left } end
    local small = model_of({ 3, 3 }, 1)
    for _, count in ipairs { 2, 3, 12 } do
      local other = model_of({ count, count, count }, 50)
      check_equal(small, other)
      check_equal(swapped(small), swapped(other))
    end
    local from_left, from_right = outcomes(small, model_of({ 4, 3 }, 90))
    for _, why in ipairs { from_left, from_right } do
      is_true(why:find("the layers have different numbers of such keys, 4 and 3", 1, true), why)
    end
  end)

  it("says that experts one below the other have the number of the pair", function()
    local function model_of(count)
      local model, parts = new_model(count), {}
      for e = 1, count do
        parts[e] = model.random(4, 5)
        model.left[("experts.%d.w"):format(e - 1)] = parts[e]
      end
      model.right.experts = cbk.cat(parts, 0)
      return model
    end
    local from_left, from_right, found = outcomes(model_of(6), model_of(7))
    is_true(found.text:find("-- always 6, as in the pair: nothing else shows where one of them ends", 1, true), found.text)
    is_true(from_left:find "unmatched experts.6" and from_right:find("the pair that the converter was inferred from has 6 parts", 1, true),
      from_left .. from_right)
  end)

  it("makes masks, identities and positions, as long as the position embeddings", function()
    local function model_of(n, layers_count)
      local model = new_model(n)
      local left, right = model.left, model.right
      model.put("wpe.weight", "pos.w", model.random(n, 6))
      local ones = cbk.tril({ n, n }, { dtype = "float32" })
      local upper = ones:transpose(0, 1)
      left.tril, left.tril_bool, right.tril_uint8 = ones, ones:to "bool", ones:to "uint8"
      left.triu, right.above, right.above_bool = upper, ones * -1 + 1, (ones * -1 + 1):to "bool"
      right.causal, left.causal16 = ((ones - 1) * (1 / 0)):replace_nan(0), ((ones - 1) * 65504):to "float16"
      left.batched, left.ids = ones:reshape { 1, n, n }, cbk.tensor({ unpack({ 0, 1, 2, 3, 4, 5, 6, 7, 8 }, 1, n) }, { dtype = "int64" })
      right.column, right.floats = left.ids:reshape({ n, 1 }):to "int32", left.ids:to "float32"
      left.eye, right.steps, right.flag = cbk.tensor({ { 1, 0 }, { 0, 1 } }, { dtype = "bool" }), cbk.full({}, 0, { dtype = "int64" }),
        cbk.full({}, 1, { dtype = "bool" })
      for i = 0, layers_count - 1 do
        model.put(("h.%d.w"):format(i), ("blocks.%d.w"):format(i), model.random(6, 4), transposed)
        left[("h.%d.bias_mask"):format(i)], right[("blocks.%d.mask"):format(i)] = ones:to "bool", right.causal
      end
      return model
    end
    local small = model_of(7, 2)
    local from_left, from_right, found = outcomes(small, model_of(9, 3))
    harness.equal(found.unexplained, {})
    is_true(found.text:find('in_pair.made("an identity of 2 rows"', 1, true), found.text)
    check_equal(small, small)
    is_true(from_left == "equal" and from_right:find("an identity of 2 rows", 1, true), from_left .. from_right)
    check_equal(small, model_of(9, 3), { has_same_sizes = true })
    local changed = model_of(7, 2)
    changed.left.tril = changed.left.tril * 2
    is_true((outcomes(small, changed)):find("its values cannot be made again on the way back", 1, true))
  end)

  it("takes the length of a mask from a config, or refuses other lengths", function()
    local function side(n, format, config)
      local tensors = cbk.dict { { format .. "w", cbk.randn({ 6, 4 }, { seed = 1, dtype = "float32" }) } }
      if format == "b" then tensors.mask = cbk.tril({ n, n }, { dtype = "bool" }) end
      return { tensors = tensors, format = format, source = format, config = config }
    end
    local function text_of(left, right) return infer.run(side(7, "a", left), side(7, "b", right), { model = "inferred" }).text end
    local text = text_of(cbk.dict { n_positions = 7, width = 4 }, cbk.dict { max_len = 7, size = 4 })
    is_true(text:find("function(at) local n = at.left.n_positions return cbk.tril({ n, n }", 1, true), text)
    text = text_of()
    is_true(text:find('in_pair.made("a mask of 7 positions"', 1, true), text)
  end)

  it("finds kernels of convolutions, and heads that are dims of their own", function()
    local function model_of(width, inner)
      local model = new_model(width)
      model.put("conv.weight", "conv.kernel", model.random(inner, 3, 4, 4), function(t) return t:permute { 2, 3, 1, 0 } end)
      for i = 0, 1 do
        local left, right = ("h.%d."):format(i), ("layers.%d."):format(i)
        model.put(left .. "q.weight", right .. "q.kernel", model.random(width, inner), function(t)
          return t:transpose(0, 1):reshape { inner, width / 4, 4 }
        end)
        model.put(left .. "q.bias", right .. "q.bias", model.random(width), function(t) return t:reshape { width / 4, 4 } end)
        model.put(left .. "o.weight", right .. "o.kernel", model.random(inner, width), function(t)
          return t:transpose(0, 1):reshape { width / 4, 4, inner }
        end)
      end
      return model
    end
    local small, large = model_of(12, 10), model_of(20, 14)
    check_equal(small, large, { has_same_sizes = true })
    check_equal({ left = small.right, right = small.left }, { left = large.right, right = large.left }, { has_same_sizes = true })
    is_true((outcomes(small, large)):find("with the shape 12x10 here", 1, true))
  end)

  it("lists complex tensors that only one side has, and matches the others", function()
    local model = new_model(3)
    local function complex(...) return cbk.tensor({ ... }, { dtype = "complex64", shape = { select("#", ...) } }) end
    model.put("w", "v", model.random(4, 6), transposed)
    model.put("freqs", "cis", complex({ 1, 2 }, { 3, 4 }))
    model.put("more", nil, complex({ 5, 6 }, { 7, 8 }))
    model.put(nil, "one", complex({ 1, 0 }))
    local from_left, from_right, found = outcomes(model, model)
    harness.equal(#found.unexplained, 2)
    harness.equal(found.unexplained[1], { side = "left", key = "more",
      why = "no tensor of the other side has its values (complex numbers are matched with those of the same dtype only)" })
    harness.equal({ from_left, from_right }, { "unmatched more", "unmatched one" })
    is_true(found.text:find('{ "freqs", "cis" }', 1, true), found.text)
  end)

  it("warns of keys that the output lacks, until a rule writes them", function()
    local model = layers(3, 6, { each = function(model, left, right)
      model.put(left .. "own", nil, model.random(3))
      model.put(nil, right .. "other", model.random(5))
    end })
    model.put(nil, "odd {x}", model.random(2))
    local text = inferred.plainly(model.left, model.right).text
    local function warnings_of(changed, side) return select(3, inferred.run_plainly(inferred.model_of(changed), side, model[side])) end
    local function lack(keys) return ("the output lacks %s, which cbk infer could not explain: add a rule that writes it"):format(keys) end
    harness.equal(warnings_of(text, "left"), { lack "blocks.{0..2}.other", lack "odd {x}" })
    harness.equal(warnings_of(text, "right"), { lack "h.{0..2}.own" })
    local mended, count = text:gsub("local keys = rules.keys {", '%0\n  { "h.N.own", "blocks.N.other" },')
    harness.equal(count, 1)
    harness.equal(warnings_of(mended, "left"), { lack "odd {x}" })
    harness.equal(warnings_of(mended, "right"), {})
  end)

  it("refuses a third dtype", function()
    local function model_of(dtype, right)
      local model = new_model(7)
      model.put("a", "b", model.random(4, 6):to(dtype), function(t) return t:to(right) end)
      return model
    end
    local from_left = outcomes(model_of("float32", "bfloat16"), model_of("float16", "bfloat16"))
    is_true(from_left:find("expected float32 or bfloat16, found float16", 1, true), from_left)
  end)

  it("says which fields other fields could be", function()
    local one = layers(2, 8, {})
    local found = infer.run({ tensors = one.left, format = "a", source = "a", config = cbk.dict { { "d_model", 64 }, { "vocab", 64 },
      { "ffn_dim", 64 }, { "depth", 3 } } }, { tensors = one.right, format = "b", source = "b", config = cbk.dict { { "words", 64 },
      { "hidden_size", 64 }, { "filter_size", 64 }, { "num_layers", 3 } } }, { model = "inferred" })
    harness.equal(found.guesses, { "vocab, words" })
    for _, names in ipairs { '"d_model", "hidden_size"', '"ffn_dim", "filter_size"', '"depth", "num_layers"', '"vocab", "words"' } do
      is_true(found.text:find(names, 1, true), found.text)
    end
  end)

  it("says that weights are not the same", function()
    local one, other = layers(2, 8, {}), layers(3, 8, {})
    local found = inferred.plainly(one.left, other.right)
    is_true(not found.is_related and #found.unexplained > 0)
    is_true(inferred.plainly(one.left, one.right).is_related)
  end)
end)
