-- `cbk export` and `cbk import`: tensors out of a checkpoint, and in.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has = harness.has

--- A folder with a checkpoint.
local function make()
  local dir = harness.temp_dir()
  cbk.create(dir .. "/m.pt", { root = cbk.dict {
    { "model", cbk.dict {
      { "head", cbk.tensor({ { 1, 2, 3 }, { 4, 5, 0.1 } }) }, { "half", cbk.tensor({ 1, -2.5, 0 / 0 }, { dtype = "bfloat16" }) },
      { "ids", cbk.tensor({ 9007199254740993LL, -1 }, { dtype = "int64" }) }, { "mask", cbk.tensor({ 1, 0 }, { dtype = "bool" }) },
      { "small", cbk.full({ 2 }, 0.5, { dtype = "float8_e4m3fn" }) }, { "wave", cbk.full({ 2 }, 1, { dtype = "complex64" }) },
    } },
    { "step", 3 },
  } }):commit()
  return dir
end

local function export(dir, ...)
  local code, out, err = run(dir, "export", "m.pt", ...)
  equal({ code, err }, { 0, "" })
  return out
end

describe("cbk export", function()
  it("writes one tensor as .npy, which opens again", function()
    local dir = make()
    equal(export(dir, "model.head", "-o", "x.npy"), "model.head: float32 [2, 3]\n")
    equal(cbk.open(dir .. "/x.npy").root.x:tolist(), cbk.open(dir .. "/m.pt").root.model.head:tolist())
  end)

  it("writes parts of tensors", function()
    local dir = make()
    equal(export(dir, "model.head[0:2, 1:]", "-o", "x.npy"), "model.head[0:2, 1:]: float32 [2, 2]\n")
    equal(cbk.open(dir .. "/x.npy").root.x[1]:tolist(), { 2, 3 })
    export(dir, "model.h*[0]", "model.head", "-o", "x.npz")
    local root = cbk.open(dir .. "/x.npz").root
    equal({ root["model.head[0]"]:tolist(), root["model.half[0]"]:tolist(), #root["model.head"] }, { { 1, 2, 3 }, 1, 2 })
    has(select(3, run(dir, "export", "m.pt", "model.haed[0]", "-o", "y.npy")), "there is no 'model.haed[0]' in 'm.pt'; did you mean")
  end)

  it("writes bfloat16 and 8-bit floats as float32, or their bits", function()
    local dir = make()
    equal(export(dir, "model.half", "-o", "x.npy"), "model.half: float32 [3] (from bfloat16)\n")
    equal(cbk.open(dir .. "/x.npy").root.x[2], -2.5)
    equal(export(dir, "model.half", "-o", "y.npy", "--raw"), "model.half: uint16 [3] (the bits of bfloat16)\n")
    equal(cbk.open(dir .. "/y.npy").root.y:tolist(), { 0x3f80, 0xc020, 0x7fc0 })
    export(dir, "model.half", "model.small", "-o", "z.npz", "--raw")
    equal(cbk.open(dir .. "/z.npz")["model.small"]:tolist(), { 0x30, 0x30 })
  end)

  it("writes several tensors as .npz, by keys, globs and what is below a name", function()
    local dir = make()
    equal(export(dir, "model.head", "*.ids", "model.head", "-o", "x.npz"), "model.head: float32 [2, 3]\nmodel.ids: int64 [2]\n")
    equal(cbk.keys(cbk.open(dir .. "/x.npz").root), { "model.head", "model.ids" })
    export(dir, "model", "-o", "y.npz")
    equal(cbk.count(cbk.open(dir .. "/y.npz").root), 6)
    local layers = cbk.dict { { "h.0.w", cbk.tensor { 1 } }, { "h.1.w", cbk.tensor { 2 } }, { "h.2.w", cbk.tensor { 1, 2 } } }
    cbk.create(dir .. "/layers.pt", { root = layers }):commit()
    local _, out = run(dir, "export", "layers.pt", "h", "-o", "z.npz")
    equal(out, "h.{0,1}.w: float32 [1]\nh.2.w: float32 [2]\n")
  end)

  it("writes CSV with the fewest digits", function()
    local dir = make()
    export(dir, "model.head", "-o", "x.csv")
    equal(cbk.fs.read(dir .. "/x.csv"), "1,2,3\n4,5,0.1\n")
    export(dir, "model.half", "-o", "y.csv")
    equal(cbk.fs.read(dir .. "/y.csv"), "1\n-2.5\nnan\n")
    export(dir, "model.ids", "-o", "z.csv")
    equal(cbk.fs.read(dir .. "/z.csv"), "9007199254740993\n-1\n")
    export(dir, "model.mask", "-o", "m", "--format", "csv")
    equal(cbk.fs.read(dir .. "/m"), "1\n0\n")
  end)

  it("writes the bytes alone", function()
    local dir = make()
    equal(export(dir, "model.half", "-o", "x.raw"), "model.half: bfloat16 [3]\n")
    equal(cbk.fs.read(dir .. "/x.raw"), "\x80\x3f\x20\xc0\xc0\x7f")
  end)

  it("writes nothing with --dry-run, and replaces nothing unasked", function()
    local dir = make()
    for _, name in ipairs { "x.npy", "x.csv", "x.raw" } do
      export(dir, "model.head", "-o", name, "--dry-run")
      is_true(not cbk.fs.exists(dir .. "/" .. name), name)
      export(dir, "model.head", "-o", name)
      local code, _, err = run(dir, "export", "m.pt", "model.head", "-o", name)
      equal(code, 1)
      has(err, "--overwrite")
      export(dir, "model.head", "-o", name, "--overwrite")
    end
  end)

  for words, message in pairs {
    ["model.head -o x.bin"] = "for a torch checkpoint: cbk copy m.pt x.bin --include model.head",
    ["model.head -o x"] = "end the name in .npy, .npz, .csv or .raw",
    ["model.head model.ids -o x.npy"] = "2 tensors are chosen, and a .npy file holds one",
    ["model.haed -o x.npy"] = "there is no 'model.haed' in 'm.pt'; did you mean 'model.head'",
    ["no* -o x.npz"] = "no key of 'm.pt' matches 'no*'",
    ["step -o x.npy"] = "'step' of 'm.pt' is not a tensor (int)",
    ["model.wave -o x.csv"] = "complex numbers have no form in CSV",
    ["model.head"] = "missing option '-o' (--output): what to write; see 'cbk export --help'",
  } do
    it("refuses " .. words, function()
      local list, dir = {}, make()
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      local code, _, err = run(dir, "export", "m.pt", unpack(list))
      is_true(code ~= 0)
      has(err, message)
    end)
  end
end)

describe("cbk import", function()
  local function import(dir, ...)
    local code, out, err = run(dir, "import", ...)
    equal({ code, err }, { 0, "" })
    return out
  end

  it("makes a checkpoint of arrays, with keys from names or --key", function()
    local dir = make()
    export(dir, "model.head", "-o", "a.weight.npy")
    export(dir, "model.ids", "-o", "b.npy")
    export(dir, "model.mask", "model.half", "-o", "c.npz")
    equal(import(dir, "a.weight.npy", "c.npz", "b.npy", "-o", "x.safetensors"), "x.safetensors: 4 tensors\n")
    local root = cbk.open(dir .. "/x.safetensors").root
    equal(root["a.weight"]:tolist(), cbk.open(dir .. "/m.pt").root.model.head:tolist())
    equal({ root["model.half"].dtype, root.b.dtype }, { "float32", "int64" })
    import(dir, "a.weight.npy", "b.npy", "--key", "one", "--key", "two", "-o", "y.pt", "--to-dtype", "bfloat16")
    root = cbk.open(dir .. "/y.pt").root
    equal({ root.one.dtype, root.two.dtype, root.one.role }, { "bfloat16", "int64", "tensor" })
  end)

  it("refuses names that occur twice, keys without arrays and other values", function()
    local dir = make()
    export(dir, "model.head", "-o", "a.npy")
    for words, message in pairs {
      ["a.npy a.npy"] = "both 'a.npy' and 'a.npy' have 'a'; give one another name with --key",
      ["a.npy --key x --key y"] = "2 keys given for 1 .npy file",
      ["m.pt"] = "'step' of 'm.pt' is not a tensor",
    } do
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      local code, _, err = run(dir, "import", "-o", "x.pt", unpack(list))
      is_true(code ~= 0)
      has(err, message)
    end
  end)
end)
