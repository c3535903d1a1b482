local cbk = require "cbk"
local ffi = require "ffi"
local t = require "harness"
local describe, it = t.describe, t.it

local function counting(...)
  local shape, list, numel = { ... }, {}, 1
  for _, extent in ipairs(shape) do numel = numel * extent end
  for i = 1, numel do list[i] = i - 1 end
  return cbk.tensor(list, { shape = shape })
end

describe("Tensor", function()
  it("has facts", function()
    local x = cbk.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = "half" })
    t.equal({ x.dtype, x:dim(), x:numel(), x:nbytes(), x.role, x.requires_grad }, { "float16", 2, 6, 12, "tensor", false })
    t.equal(x:shape(), { 2, 3 })
    t.equal(tostring(x), "Tensor float16 [2, 3]")
    t.raises("has no 'no_such_field'", function() return x.no_such_field end, "key")
  end)

  it("makes views", function()
    local x = counting(2, 3, 4)
    t.equal(x:reshape({ 6, -1 }):shape(), { 6, 4 })
    t.equal(x:permute({ 2, 0, 1 }):tolist()[4], { { 3, 7, 11 }, { 15, 19, 23 } })
    t.equal(x:transpose(0, -1):shape(), { 4, 3, 2 })
    t.equal(x:slice(1, -2):select(0, 1):tolist(), { { 16, 17, 18, 19 }, { 20, 21, 22, 23 } })
    t.equal(x:slice(2, 0, 100, 3):select(1, 0):tolist(), { { 0, 3 }, { 12, 15 } })
    t.equal(x:select(0, 0):index_select(0, { 2, 0 }):flip(1):tolist(), { { 11, 10, 9, 8 }, { 3, 2, 1, 0 } })
    t.equal(counting(1, 2):expand({ 3, 2 }):tolist(), { { 0, 1 }, { 0, 1 }, { 0, 1 } })
    t.equal(cbk.cat({ counting(1, 2), counting(2, 2) }, 0):tolist(), { { 0, 1 }, { 0, 1 }, { 2, 3 } })
    t.equal(cbk.stack({ counting(2), counting(2) }, 1):tolist(), { { 0, 0 }, { 1, 1 } })
  end)

  it("has rows, counted from 1", function()
    local x = counting(3, 2)
    t.equal({ #x, #x[1], x[1][1], x[3][2] }, { 3, 2, 0, 5 })
    t.equal(x[2]:tolist(), { 2, 3 })
    local seen = {}
    for i, row in x:rows() do seen[i] = row:tolist() end
    t.equal(seen, x:tolist())
    local sum = 0
    for _, element in counting(4):rows() do sum = sum + element end
    t.equal(sum, 6)
    for _ in counting(0, 2):rows() do error("no row is expected") end
    t.equal(cbk.tensor({ 1, 2 }, { dtype = "int64" })[2], 2)
    for position, text in pairs { [0] = "; Lua counts from 1: w[0] of Python is w[1]", [-1] = ": w[-1] of Python is w[3]", [4] = "from 1",
      [-4] = "from 1" } do
      t.raises(text, function() return x[position] end, "shape")
    end
    t.raises("a tensor of shape [0, 2]; Lua counts from 1", function() return counting(0, 2)[0] end, "shape")
    t.raises("not by 1.5", function() return x[1.5] end, "usage")
    t.raises("whole numbers", function() return x[true] end, "usage")
    t.raises("without dims", function() return cbk.full({}, 1)[1] end, "shape")
    t.raises("without dims", function() return #cbk.full({}, 1) end, "shape")
    t.raises("cannot be changed", function() x[1] = 0 end, "usage")
  end)

  it("splits by size or sizes", function()
    local shapes = {}
    for i, part in ipairs(counting(5, 2):split(2)) do shapes[i] = part:shape() end
    t.equal(shapes, { { 2, 2 }, { 2, 2 }, { 1, 2 } })
    t.equal(counting(2, 3):split({ 1, 2 }, 1)[2]:tolist(), { { 1, 2 }, { 4, 5 } })
    t.raises("expected sizes that add up to", function() counting(5):split({ 2, 2 }) end, "shape")
    t.raises("expected sizes that add up to", function() counting(5):split({ 7, -2 }) end, "shape")
  end)

  it("computes", function()
    local x = counting(2, 2)
    t.equal((x * 2 + 1):tolist(), { { 1, 3 }, { 5, 7 } })
    t.equal((1 - x / 2):tolist(), { { 1, 0.5 }, { 0, -0.5 } })
    t.equal((x + x - x * x):tolist(), { { 0, 1 }, { 0, -3 } })
    t.equal((-x):tolist(), { { 0, -1 }, { -2, -3 } })
    t.equal(x:matmul(x):tolist(), { { 2, 3 }, { 6, 11 } })
    t.equal(cbk.tril({ 2, 3 }):tolist(), { { 1, 0, 0 }, { 1, 1, 0 } })
    t.equal(cbk.tensor({ 0 / 0, 1 }):replace_nan(7):tolist(), { 7, 1 })
    t.raises("divided by a number", function() return 1 / x end)
  end)

  it("stops before an expression becomes too deep to read", function()
    local x = cbk.tensor { 0 }
    for _ = 1, 4990 do x = x + 1 end
    t.equal(x:item(), 4990)
    t.raises("operations on one tensor", function()
      for _ = 1, 100 do x = x + 1 end
    end, "value")
  end)

  it("goes through every dtype", function()
    for _, dtype in ipairs { "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32",
      "float64", "float8_e5m2", "float8_e4m3fn" } do
      local x = cbk.tensor({ 0, 1, 2, 3 }, { dtype = dtype })
      t.equal(x:tolist(), { 0, 1, 2, 3 }, dtype)
      t.equal(x:to("float64"):to(dtype):hex(), x:hex(), dtype)
      t.equal(cbk.dtype(dtype).size * 4, x:nbytes())
    end
    t.equal(cbk.tensor({ true, false }, { dtype = "bool" }):tolist(), { true, false })
    t.equal(cbk.tensor({ { 1, -2 }, 3 }, { dtype = "complex64", shape = { 2 } }):tolist(), { { 1, -2 }, { 3, 0 } })
  end)

  it("keeps 64-bit integers", function()
    local x = cbk.tensor({ 9007199254740993LL, -1 }, { dtype = "int64" })
    t.is_true(x:tolist()[1] == 9007199254740993LL)
    t.equal(x:hex(), "0100000000002000ffffffffffffffff")
    t.is_true(cbk.tensor({ 18446744073709551615ULL }, { dtype = "uint64" }):item() == 18446744073709551615ULL)
    t.equal(cbk.full({ 2 }, 9007199254740993LL, { dtype = "int64" }):hex(), ("0100000000002000"):rep(2))
  end)

  it("computes with integers exactly, and holds them at the ends of the dtype", function()
    local function int64(...) return cbk.tensor({ ... }, { dtype = "int64" }) end
    local far = 9007199254740993LL -- 2^53 + 1, which no double holds
    t.is_true((int64(far) + 1):item() == far + 1)
    t.is_true((int64(far) * 3):item() == far * 3)
    t.is_true((-int64(far)):item() == -far)
    t.is_true((int64(far) - int64(1)):item() == far - 1)
    t.is_true((int64(far) * int64(-5)):item() == far * -5)
    t.equal((int64(7) * 0.5):item(), 3)
    local cases = { -- dtype, element, factor, term, result
      { "int8", 100, 2, 0, 127 }, { "int8", -100, 2, 0, -128 }, { "uint8", 3, -1, 0, 0 }, { "uint8", 200, 1, 55, 255 },
      { "int16", 30000, -2, 0, -32768 }, { "uint16", 65535, 1, 1, 65535 }, { "int32", 2147483647, 1, 1, 2147483647 },
      { "uint32", 1, -1, 0, 0 }, { "int64", 9223372036854775807LL, 2, 0, 9223372036854775807LL },
      { "uint64", 18446744073709551615ULL, 2, 0, 18446744073709551615ULL }, { "uint64", 18446744073709551615ULL, -1, 0, 0 },
    }
    for _, case in ipairs(cases) do
      local dtype, element, factor, term, result = unpack(case)
      t.is_true(cbk.tensor({ element }, { dtype = dtype }):affine(factor, term):item() == result, dtype)
    end
    local most = cbk.tensor({ 18446744073709551615ULL }, { dtype = "uint64" })
    t.is_true((most * most):item() == 18446744073709551615ULL)
    t.is_true((most + most):item() == 18446744073709551615ULL)
  end)

  it("refuses elements that do not fit", function()
    t.raises("does not fit uint8", function() cbk.tensor({ 256 }, { dtype = "uint8" }) end, "value")
    t.raises("does not fit uint64", function() cbk.tensor({ -1 }, { dtype = "uint64" }) end, "value")
    t.raises("1.5 cannot be an element", function() cbk.tensor({ 1.5 }, { dtype = "int32" }) end, "value")
    for text, case in pairs {
      ["10000000000 does not fit float16"] = { 1e10, "float16" }, ["-500 does not fit float8_e4m3fn"] = { -500, "float8_e4m3fn" },
      ["1e+39 does not fit float32"] = { 1e39, "float32" }, ["1e+39 does not fit bfloat16"] = { 1e39, "bfloat16" },
      ["-1e+40 does not fit complex64"] = { -1e40, "complex64" }, ["300 does not fit int8"] = { 300, "int8" },
      ["1.5 cannot be an element of a tensor of uint8"] = { 1.5, "uint8" },
    } do
      local value, dtype = unpack(case)
      t.raises(text, function() cbk.tensor({ 1, value }, { dtype = dtype, shape = { 2 } }) end, "value")
      t.raises(text, function() cbk.full({ 2 }, value, { dtype = dtype }) end, "value")
    end
    t.raises("1e+39 does not fit complex64", function() cbk.tensor({ { 1, 1e39 } }, { dtype = "complex64", shape = { 1 } }) end, "value")
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      t.equal(cbk.tensor({ math.huge, -math.huge }, { dtype = dtype }):tolist(), { math.huge, -math.huge })
      t.equal(cbk.full({ 2 }, math.huge, { dtype = dtype }):tolist(), { math.huge, math.huge })
      t.equal(cbk.full({ 1 }, 0 / 0, { dtype = dtype }):stats().nan, 1)
    end
    t.equal(cbk.full({ 1 }, 65519, { dtype = "float16" }):item(), 65504)
    t.equal(cbk.full({ 1 }, 1e-30, { dtype = "float16" }):item(), 0)
    t.raises("same depth", function() cbk.tensor { { 1 }, 2 } end, "shape")
    t.raises("same length", function() cbk.tensor { { 1, 2 }, { 3 } } end, "shape")
    t.raises("expected 3 elements for shape", function() cbk.tensor({ 1, 2 }, { shape = { 3 } }) end, "shape")
    t.raises("a number expected", function() cbk.tensor { "x" } end, "value")
  end)

  it("has shapes without elements and without dims", function()
    t.equal(cbk.tensor({}, { shape = { 0, 3 } }):tolist(), {})
    t.equal(cbk.tensor({ {}, {} }):shape(), { 2, 0 })
    t.equal(cbk.tensor(5):shape(), {})
    t.equal(cbk.tensor(5):item(), 5)
    t.raises("item() expects a tensor with one element, got 2", function() counting(2):item() end, "shape")
  end)

  it("share their content with tensors of the same elements in any order, and add up", function()
    for _, dtype in ipairs { "uint8", "bfloat16", "float32", "int64", "float64" } do
      local a = cbk.tensor({ 1, 2, 3, 4, 5, 6 }, { shape = { 2, 3 }, dtype = "float32" }):to(dtype)
      local b = a:transpose(0, 1):flip(0)
      t.is_true(a:content() == b:content(), dtype)
      t.is_true(cbk.cat({ a, a:slice(0, 0, 1) }, 0):content() == a:content() + a:slice(0, 0, 1):content(), dtype)
      t.is_true(a:content() ~= a:slice(0, 0, 1):content(), dtype)
    end
  end)

  it("summarises", function()
    local stats = cbk.tensor({ 1, 2, 3, 0, 0 / 0, math.huge }):stats()
    t.equal({ stats.min, stats.max, stats.mean, stats.nan, stats.inf, stats.zeros, stats.numel }, { 0, 3, 1.5, 1, 1, 1, 6 })
    t.near(stats.std, math.sqrt(5 / 4), 1e-12)
    t.equal(cbk.tensor({ 97, 98, 99 }, { dtype = "uint8" }):sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    -- Long enough for several blocks.
    local long = cbk.full({ 3, 1000, 1000 }, 0.25):stats()
    t.equal({ long.mean, long.std, long.numel }, { 0.25, 0, 3000000 })
  end)

  it("summarises integers exactly", function()
    local function stats(dtype, ...) return cbk.tensor({ ... }, { dtype = dtype }):stats() end
    local one = stats("int64", 9007199254740993LL)
    t.equal({ tostring(one.min), tostring(one.max), one.std }, { "9007199254740993LL", "9007199254740993LL", 0 })
    local wide = stats("uint64", 18446744073709551615ULL, 0)
    t.equal({ tostring(wide.max), wide.min, wide.mean, wide.std }, { "18446744073709551615ULL", 0, 2 ^ 63, 2 ^ 63 })
    local flags = stats("bool", true, false, true, true)
    t.equal({ flags.min, flags.max, flags.mean, flags.zeros }, { 0, 1, 0.75, 1 })
    local large = stats("float64", 1.7e308, 1.7e308)
    t.equal({ large.mean, large.std }, { 1.7e308, 0 })
    for _, none in ipairs { cbk.tensor({}, { shape = { 0, 3 } }):stats(), stats("float32", 0 / 0, math.huge) } do
      t.equal({ none.min, none.max, none.mean, none.std }, {})
    end
    local function distance(a, b)
      local left, right = cbk.tensor({ a }, { dtype = "int64" }), cbk.tensor({ b }, { dtype = "int64" })
      return tostring(left:compare(right).max_abs)
    end
    t.equal({ distance(9007199254740993LL, 0), distance(-9223372036854775807LL - 1, 9223372036854775807LL), distance(3, 5) },
      { "9007199254740993LL", "18446744073709551615ULL", "2" })
  end)

  it("compares whole numbers with real ones exactly", function()
    local function compared(whole, real, dtype, options)
      local left = cbk.tensor({ whole }, { dtype = dtype or "int64" })
      local right = cbk.tensor({ real }, { dtype = "float64" })
      local one, other = left:compare(right, options), right:compare(left, options)
      t.equal({ one.different, one.max_abs }, { other.different, other.max_abs })
      return { one.different, one.max_abs }
    end
    t.equal(compared(9007199254740993LL, 2 ^ 53), { 1, 1 })
    t.equal(compared(9007199254740992LL, 2 ^ 53), { 0, 0 })
    t.equal(compared(9223372036854775807LL, 2 ^ 63), { 1, 1 })
    t.equal(compared(18446744073709551615ULL, 2 ^ 64, "uint64"), { 1, 1 })
    t.equal(compared(9007199254740993LL, 2 ^ 53, nil, { atol = 1 }), { 0, 1 })
    t.equal(compared(-3, -2.5, "int8"), { 1, 0.5 })
    t.equal(compared(1, 1, "bool"), { 0, 0 })
    for _, odd in ipairs { math.huge, -math.huge, 0 / 0, 1e300 } do t.equal(compared(1, odd, "int32")[1], 1) end
  end)

  it("gives pointers that stay valid", function()
    local pointer, anchor = counting(4):ptr()
    collectgarbage()
    t.equal({ pointer[0], pointer[3] }, { 0, 3 })
    t.is_true(ffi.istype("const float *", pointer) and anchor ~= nil)
    local bits, bits_anchor = cbk.full({ 2 }, 1, { dtype = "bfloat16" }):ptr()
    t.equal({ bits[1], bits_anchor ~= nil }, { 0x3f80, true })
  end)

  it("knows which tensors share bytes", function()
    local x = counting(4, 2)
    local storage = x:storage()
    t.equal({ storage.offset, storage.numel, storage.file }, { 0, 8 })
    t.equal(storage.stride, { 2, 1 })
    t.equal(x:as({ role = "parameter" }):storage().id, storage.id)
    t.is_true(x:same(x:as { role = "parameter" }))
    t.is_true(not x:same(counting(4, 2)))
    t.equal((x * 2):storage(), nil)
  end)

  it("takes other roles", function()
    local p = counting(2):as { role = "parameter", requires_grad = true }
    t.equal({ p.role, p.requires_grad, cbk.kind(p) }, { "parameter", true, "parameter" })
    t.equal((p * 2).role, "tensor")
    t.equal(counting(2):as({ role = "ndarray" }):flip(0).role, "ndarray")
    t.raises("unknown role", function() p:as { role = "weight" } end, "usage")
  end)

  it("makes random numbers that depend on the seed only", function()
    local a = cbk.randn({ 1000 }, { seed = 1, mean = 2, std = 0.5 })
    t.equal(a:sha256(), cbk.randn({ 1000 }, { seed = 1, mean = 2, std = 0.5 }):sha256())
    t.is_true(a:sha256() ~= cbk.randn({ 1000 }, { seed = 2, mean = 2, std = 0.5 }):sha256())
    t.near(a:stats().mean, 2, 0.1)
    t.near(a:stats().std, 0.5, 0.05)
  end)

  it("says what does not fit", function()
    t.raises("shape", function() counting(2, 3):reshape { 4 } end, "shape")
    t.raises("the shape [-1, 3, -1] has -1 more than once", function() counting(2, 3):reshape { -1, 3, -1 } end, "shape")
    t.raises("6 elements do not divide by the other extents of [4, -1]", function() counting(2, 3):reshape { 4, -1 } end, "shape")
    local complex = cbk.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "complex64", shape = { 2 } })
    t.raises("complex64 numbers have no order", function() complex:stats() end, "dtype")
    t.equal(complex:tolist(), { { 1, 2 }, { 3, 4 } })
    t.raises("cannot add [2, 3] and [3, 2]", function() counting(2, 3):add(counting(3, 2)) end, "shape")
    t.raises("is not a dtype", function() counting(2):to "float31" end, "dtype")
    t.raises("index 2 is out of range in dim 0", function() counting(2):select(0, 2) end, "shape")
    t.raises("integers expected", function() counting(2):reshape { "x" } end)
    t.raises("a whole number expected", function() counting(2):slice(0, 0.5) end)
  end)
end)

describe("inspect", function()
  local inspect = require "cbk.inspect"

  it("prints edges of large tensors", function()
    local text = inspect.text(counting(100, 100))
    t.is_true(text:find("Tensor float32 [100, 100], 39.1 KiB", 1, true))
    t.is_true(text:find("[   0,    1,    2, …,   97,   98,   99]", 1, true), text)
    t.is_true(#text < 1000)
    local narrow = inspect.text(counting(100, 100), { columns = 20 }):match "\n(.*)"
    t.equal(narrow, "  [[   0, …,   99],\n   …,\n   [9900, …, 9999]]")
  end)

  it("folds layers", function()
    local tree = cbk.dict()
    for layer = 0, 11 do tree[("h.%d.w"):format(layer)] = cbk.full({ 2 }, layer) end
    t.is_true(inspect.text(tree):find("h.{0..11}.w  12 ×  float32  [2]", 1, true))
  end)

  it("prints the beginning of a long text, in whole characters", function()
    t.equal(inspect.text("aé" .. ("é"):rep(100), { text = 4 }), '"aé…"')
    t.equal(inspect.text("\1\1\1", { text = 8 }), '"\\x01\\x01…"')
    t.equal(inspect.text("éé", { text = 4 }), '"éé"')
  end)

  it("prints configs nested", function()
    local config = cbk.config.parse("a: {b: [1, 2]}\nc: null\n", "yaml")
    t.equal(inspect.text(config), "Dict (2 entries)\n  a: Dict (1 entry)\n    b: [1, 2]\n  c: null")
    t.equal(inspect.text({ 1, "x", cbk.null }), '[1, "x", null]')
    local loop = {}
    loop.again = loop
    t.equal(inspect.text(loop), "table\n  again: (itself)")
  end)
end)

describe("A tensor that the collector has ended", function()
  it("is closed where a table with weak keys still has it", function()
    local weak, count = setmetatable({}, { __mode = "k" }), 0
    for i = 1, 100 do weak[cbk.full({ 2 }, i)] = true end
    collectgarbage()
    for tensor in pairs(weak) do
      count = count + 1
      t.raises("is closed", function() return tensor:shape() end)
    end
    t.is_true(count > 0)
  end)
end)
