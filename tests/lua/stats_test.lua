-- `cbk stats`, and the tensors that `cbk ls` chooses by shape and dtype.

local cbk = require "cbk"
local harness = require "harness"
local stats_table = require "cbk.stats_table"
local text_table = require "cbk.text_table"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has, lacks = harness.has, harness.lacks

--- A folder with a checkpoint of few tensors, one of them tied.
local function make()
  local dir = harness.temp_dir()
  local weight = cbk.tensor({ 1, 2, 3, 4, 0, 0 / 0, math.huge, -2 }, { shape = { 2, 4 } })
  cbk.create(dir .. "/m.pt", { root = cbk.dict {
    { "model", cbk.dict {
      { "layers.0.weight", weight }, { "layers.1.weight", cbk.full({ 3, 4 }, 0.5) }, { "head", weight },
      { "ids", cbk.tensor({ 5, 7 }, { dtype = "int64" }) }, { "nothing", cbk.tensor({}, { shape = { 0, 4 } }) },
      { "wave", cbk.full({ 2 }, 1, { dtype = "complex64" }) },
    } },
    { "step", 3 },
  } }):commit()
  return dir
end

--- The words of the line that begins with `key`.
local function line_of(text, key)
  for line in text:gmatch "[^\n]+" do
    if line:sub(1, #key) == key then return line:gsub(" +", " ") end
  end
  error(("no line for %s in %q"):format(key, text), 2)
end

local function keys_of(text)
  local keys = {}
  for key in text:gmatch "\n([^ ]+)" do keys[#keys + 1] = key:match "[^.]+$" end
  return keys
end

describe("cbk stats", function()
  it("prints a line for each tensor", function()
    local code, out, err = run(make(), "stats", "m.pt")
    equal({ code, err }, { 0, "warning: 'm.pt': 1 tensor of complex numbers is left out: they have no order\n" })
    equal(line_of(out, "key"), "key dtype shape min max mean std norm nan inf zeros")
    equal(line_of(out, "model.layers.0.weight"), "model.layers.0.weight float32 [2, 4] -2 4 1.333 1.972 5.831 12.5 % 12.5 % 12.5 %")
    equal(line_of(out, "model.head"), "model.head = model.layers.0.weight float32 [2, 4] -2 4 1.333 1.972 5.831 12.5 % 12.5 % 12.5 %")
    equal(line_of(out, "model.ids"), "model.ids int64 [2] 5 7 6 1 8.602")
    equal(line_of(out, "model.nothing"), "model.nothing float32 [0, 4]")
    lacks(out, "wave")
  end)

  it("sorts, filters and shows the first", function()
    local dir = make()
    local function keys(...) return keys_of(select(2, run(dir, "stats", "m.pt", ...))) end
    equal(keys("--sort", "norm", "--top", "2"), { "ids", "weight" })
    equal(keys("--sort", "key", "--dtype", "float32"), { "head", "weight", "weight", "nothing" })
    equal(keys("--shape", "*,4", "--sort", "size"), { "weight", "weight", "head", "nothing" })
    equal(keys("--shape", "2"), { "ids" })
    equal(keys("--key", "*.1.*"), { "weight" })
    equal(keys("--key", "model.layers.1"), { "weight" })
  end)

  it("keeps the columns that were asked for where the terminal is narrow", function()
    local dir = make()
    local titles = select(2, harness.cbk_with("COLUMNS=50", dir, "stats", "m.pt", "--quantiles", "0.25,0.99")):match "[^\n]*"
    has(titles, "q0.25")
    has(titles, "q0.99")
  end)

  it("prints quantiles, CSV and JSON", function()
    local dir = make()
    local out = select(2, run(dir, "stats", "m.pt", "--key", "model.ids", "--quantiles", "0,0.5,1"))
    equal(line_of(out, "key"), "key dtype shape min max mean std norm q0 q0.5 q1")
    equal(line_of(out, "model.ids"), "model.ids int64 [2] 5 7 6 1 8.602 5 6 7")
    out = select(2, run(dir, "stats", "m.pt", "--csv", "--dtype", "int64"))
    equal(out, "file,key,dtype,shape,numel,bytes,min,max,mean,std,norm,nan,inf,zeros,subnormal\n"
      .. "m.pt,model.ids,int64,2,2,16,5,7,6,1,8.6023252670426267,0,0,0,0\n")
    local tensors = cbk.totable(cbk.config.parse(select(2, run(dir, "stats", "m.pt", "--json", "--bins", "2")), "json")).tensors
    equal(tensors[4].quantiles, { ["0.01"] = 5.02, ["0.5"] = 6, ["0.99"] = 6.98 })
    equal(tensors[4].histogram, { edges = { 5, 6, 7 }, counts = { 1, 1 } })
    equal({ tensors[1].nan, tensors[1].inf, tensors[1].zeros, tensors[3].tied_to }, { 1, 1, 1, "model.layers.0.weight" })
    equal({ tensors[5].min, tensors[5].norm, tensors[5].histogram }, { cbk.null, cbk.null, { edges = {}, counts = {} } })
  end)

  it("sums up the states of an optimizer behind the model, and names their parameters with --all", function()
    local dir, state = harness.temp_dir(), cbk.dict()
    state[0] = cbk.dict { { "exp_avg", cbk.tensor { 1, 2, 0 / 0 } }, { "step", cbk.tensor(7) } }
    state[1] = cbk.dict { { "exp_avg", cbk.tensor { 3, -2, 6 } }, { "step", cbk.tensor(7) } }
    local model = cbk.dict { { "b.w", cbk.full({ 3 }, 1) }, { "a.w", cbk.full({ 3 }, 2) } }
    local groups = cbk.list { cbk.dict { { "params", cbk.list { 0, 1 } } } }
    cbk.create(dir .. "/m.pt", { root = cbk.dict { { "optimizer", cbk.dict { { "state", state }, { "param_groups", groups } } },
      { "model", model } } }):commit()
    local code, out = run(dir, "stats", "m.pt")
    equal(code, 0)
    equal(keys_of(out), { "w", "w", "exp_avg", "step", "(states" })
    equal(line_of(out, "optimizer.state.*.exp_avg"), "optimizer.state.*.exp_avg float32 2 tensors -2 6 2 2.608 7.348 16.7 %")
    has(out, "\n(states of optimizers are summed up; --all lists them)\n")
    out = select(2, run(dir, "stats", "m.pt", "--all"))
    has(out, "\noptimizer.state.1.exp_avg (of a.w)  float32  [3]")
    lacks(out, "*")
    has(select(2, run(dir, "stats", "m.pt", "--key", "optimizer.state.1")), "optimizer.state.1.exp_avg (of a.w)")
    equal(#cbk.config.parse(select(2, run(dir, "stats", "m.pt", "--json")), "json").tensors, 6)
  end)

  it("takes several files, and warns of one without chosen tensors", function()
    local dir = make()
    cbk.create(dir .. "/n.safetensors", { root = cbk.dict { { "model.ids", cbk.tensor { 1 } } } }):commit()
    local _, out, err = run(dir, "stats", "m.pt", "n.safetensors", "--dtype", "int64")
    has(out, "m.pt: model.ids")
    has(err, "no tensor of 'n.safetensors' is chosen")
    local code
    code, out, err = run(dir, "stats", "m.pt", "--key", "modle.ids")
    equal({ code, out, err }, { 1, "", "cbk: no tensor matches --key 'modle.ids'; did you mean 'model.ids'?\n" })
    equal(select(3, run(dir, "stats", "m.pt", "--key", "zzz*")), "cbk: no tensor matches --key 'zzz*'; 'cbk ls' lists what there is\n")
    equal(select(3, run(dir, "stats", "m.pt", "--shape", "9,9,9")), "cbk: no tensor is chosen; 'cbk ls' lists what there is\n")
  end)

  it("fits the terminal: keys are shortened, the least important columns left out", function()
    local columns = {
      { title = "key" }, { title = "a", weight = 1 }, { title = "b", weight = 2, right = true }, { title = "c", weight = 3 },
    }
    local rows = { { "model.layers.0.weight", "one", "2", "" }, { "ö", "three", "44", "" } }
    equal(text_table.lines(columns, rows), {
      "key                    a       b",
      "model.layers.0.weight  one     2",
      "ö                      three  44",
    })
    equal(text_table.lines(columns, rows, 20), { "key                b", "…layers.0.weight   2", "ö                 44" })
    equal(text_table.lines(columns, rows, 31),
      { "key                   a       b", "…del.layers.0.weight  one     2", "ö                     three  44" })
    equal(text_table.lines({ { title = "key" }, { title = "a", weight = 1 } }, { { ("k"):rep(90), ("a"):rep(50) } }, 80),
      { "key", "…" .. ("k"):rep(79) }) -- two fifths of a line are the key's
    equal(text_table.lines(columns, rows, 5), { "key", "…rs.0.weight", "ö" })
    local state = { { "optimizer.state.5.exp_avg (of model.layers.3.weight)" } }
    equal(text_table.lines({ { title = "key" } }, state, 48), { "key", "optimizer.state.5.exp_avg (of ….layers.3.weight)" })
    equal(text_table.lines({ { title = "key" } }, state, 30), { "key", "optimizer.state.5.exp_avg" }) -- no room for the parameter
    equal(select(2, text_table.lines(columns, rows, 20)), { "a" })
    equal(select(2, text_table.lines(columns, rows)), {})
  end)

  it("names the columns that the terminal is too narrow for, and rounds means of large integers", function()
    local stats = cbk.tensor({ 4611686018427387904LL, 5, 7 }, { dtype = "int64" }):stats()
    local row = { key = "big", dtype = "int64", shape = { 3 }, stats = stats }
    local lines = stats_table.lines({ row }, { width = 60 })
    has(line_of(table.concat(lines, "\n"), "big"), " 5 4611686018427387904 1.537e+18 2.174e+18")
    equal(lines[3], "(too narrow for: dtype, shape, norm)")
    equal(#stats_table.lines({ row }, { width = 200 }), 2)
  end)

  for words, message in pairs {
    ["--shape x"] = "--shape 'x': expected extents such as '*,4096'",
    ["--sort nrm"] = "; did you mean 'norm'?",
    ["--top 0"] = "--top '0': expected a whole number of at least 1",
    ["--dtype float31"] = "float31",
    ["--quantiles 2"] = "--quantiles '2': expected numbers from 0 to 1",
    ["--csv --json"] = "exclude each other",
  } do
    it("refuses " .. words, function()
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      local code, _, err = run(make(), "stats", "m.pt", unpack(list))
      equal(code, 2)
      has(err, message)
    end)
  end

  it("shows the column that it sorts by, however narrow the terminal is", function()
    local columns = stats_table.columns { sort = "zeros" }
    local cells, titles = {}, {}
    for c, column in ipairs(columns) do cells[c], titles[column.title] = "12345678", true end
    is_true(titles.zeros)
    has(text_table.lines(columns, { cells }, 24)[1], "zeros")
  end)

  it("says why a tensor is left out", function()
    local dir = make()
    local function u64(number) return string.char(number) .. ("\0"):rep(7) end
    local tensor = u64(1) .. "w\1\0\0\0" .. u64(1) .. "\99\0\0\0" .. u64(0)
    cbk.fs.write(dir .. "/u.gguf", "GGUF\3\0\0\0" .. u64(1) .. u64(0) .. tensor .. ("\0"):rep(64))
    local code, _, err = run(dir, "stats", "u.gguf")
    equal(code, 1)
    has(err, "'u.gguf': 1 tensor cannot be read and is left out")
    has(err, "its type has the number 99")
  end)

  it("says that nothing is chosen", function()
    local code, _, err = run(make(), "stats", "m.pt", "--key", "nope")
    equal(code, 1)
    has(err, "no tensor matches --key 'nope'; 'cbk ls' lists what there is")
  end)
end)

describe("t:stats", function()
  it("gives quantiles and a histogram when they are asked for", function()
    local list = {}
    for i = 1, 1000 do list[i] = i / 1000 end
    local stats = cbk.tensor(list):stats { quantiles = { 0, 0.5, 1 }, bins = 4 }
    equal({ stats.quantiles[1], stats.quantiles[3] }, { stats.min, stats.max })
    harness.near(stats.quantiles[2], 0.5, 0.005)
    equal(#stats.histogram.counts, 4)
    local sum = 0
    for i, count in ipairs(stats.histogram.counts) do
      sum = sum + count
      is_true(math.abs(count - 250) <= 5)
      is_true(stats.histogram.edges[i] < stats.histogram.edges[i + 1])
    end
    equal(sum, 1000)
    equal(cbk.tensor({ 1 }):stats().quantiles, nil)
  end)

  it("counts numbers below the least normal one of their dtype", function()
    equal(cbk.tensor({ 2 ^ -15, 2 ^ -14, 0 }, { dtype = "float16" }):stats().subnormal, 1)
    equal(cbk.tensor({ 2 ^ -15, 2 ^ -130, 0 }, { dtype = "bfloat16" }):stats().subnormal, 1)
  end)

  it("refuses shares that are no shares", function()
    harness.raises("a quantile must be from 0 to 1, not 2", function() cbk.tensor({ 1 }):stats { quantiles = { 2 } } end)
    harness.raises("list of numbers as quantiles", function() cbk.tensor({ 1 }):stats { quantiles = 0.5 } end)
    harness.raises("bins", function() cbk.tensor({ 1 }):stats { bins = 0 } end)
  end)
end)

describe("cbk ls", function()
  it("lists layer 2 before layer 10, as stats does", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for _, layer in ipairs { 0, 1, 10, 11, 2 } do root[("layers.%d.w"):format(layer)] = cbk.full({ 2 }, layer) end
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    for _, command in ipairs { { "ls", "--flat" }, { "stats" }, { "stats", "--csv" }, { "stats", "--top", "3" }, { "ls", "--top", "3" } } do
      local out = select(2, run(dir, command[1], "m.pt", unpack(command, 2)))
      is_true(out:find "layers%.1%.w.*layers%.2%.w", out)
      is_true(not out:find "layers%.10%.w.*layers%.2%.w", out)
    end
  end)

  it("says where other orders are", function()
    local code, _, err = run(make(), "ls", "m.pt", "--sort", "norm")
    equal(code, 2)
    has(err, "'cbk stats' sorts by values")
  end)

  it("chooses by shape and dtype, and sorts", function()
    local dir = make()
    local out = select(2, run(dir, "ls", "m.pt", "--shape", "*,4", "--flat"))
    has(out, "model.layers.1.weight")
    lacks(out, "ids")
    lacks(out, "step")
    out = select(2, run(dir, "ls", "m.pt", "--sort", "size", "--top", "1"))
    has(out, "\nmodel.layers.1.weight  float32  [3, 4]  48 B\n")
    lacks(out, "head")
    equal(#cbk.config.parse(select(2, run(dir, "ls", "m.pt", "--dtype", "int64", "--json")), "json").entries, 1)
    local code, _, err = run(dir, "ls", "m.pt", "--key", "model", "step")
    equal(code, 2)
    has(err, "both 'step' and --key 'model' are given, which mean the same; keep one of them")
  end)
end)
