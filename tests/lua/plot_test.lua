-- `cbk plot`: histograms, heat maps, numbers by layer; in the terminal, as SVG and as PNG.

local cbk = require "cbk"
local figure = require "cbk.plot.figure"
local harness = require "harness"
local layers = require "cbk.plot.layers"
local scale = require "cbk.plot.scale"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has = harness.has

local HOSTILE = "<script>alert('x')</script>&\27[31m"

local function make()
  local dir, root = harness.temp_dir(), cbk.dict()
  for layer = 0, 10 do
    root["h." .. layer .. ".weight"], root["h." .. layer .. ".bias"] = cbk.full({ 2, 2 }, layer), cbk.full({ 4 }, 1)
  end
  root.spread = cbk.tensor({ 1, 1, 1, 1, 2, 2, 3, 0 / 0 })
  root.matrix = cbk.cat({ cbk.full({ 17, 8 }, 1), cbk.full({ 1, 8 }, 0 / 0), cbk.full({ 14, 8 }, 3) }, 0)
  root.ids, root.wave = cbk.tensor({ 1, 2 }, { dtype = "int64" }), cbk.full({ 2 }, 1, { dtype = "complex64" })
  root.empty = cbk.full({ 0, 2 }, 1)
  root.note, root[HOSTILE] = "text", cbk.full({ 2, 2 }, 1)
  cbk.create(dir .. "/m.pt", { root = root }):commit()
  return dir
end

describe("cbk plot", function()
  it("draws a histogram", function()
    local code, out, err = run(make(), "plot", "m.pt", "spread", "--bins", "2", "--ascii", "--width", "30")
    equal({ code, err }, { 0, "" })
    equal(out, "spread  float32 [8]\nmin 1  max 3  mean 1.57  std 0.728  norm 4.58  nan 1\n"
      .. "1  4  ########################\n2  3  ##################\n3\n")
    has(select(2, run(make(), "plot", "m.pt", "ids")), "ids  int64 [2]")
    equal(select(2, run(make(), "plot", "m.pt", "empty")), "empty  float32 [0, 2]\n\n")
  end)

  it("draws a heat map, and says where NaN are", function()
    local code, out, err = run(make(), "plot", "m.pt", "matrix", "--heat-map", "--ascii", "--width", "30")
    equal({ code, err }, { 0, "" })
    has(out, "\n17 |!!!!!!!!\n18 |@@@@@@@@\n")
    has(out, "    0      7\nrms of blocks from 1 to 3\n! 8 NaN in row 17, columns 0 to 7\n")
    has(select(2, run(make(), "plot", "m.pt", "h.3.bias", "--heat-map", "--of", "mean")), "mean of blocks from -1 to 1")
  end)

  it("draws a number by layer", function()
    local dir = make()
    local code, out, err = run(dir, "plot", "m.pt", "h.*.weight", "--by-layer", "--ascii", "--width", "30")
    equal({ code, err }, { 0, "" })
    has(out, "norm by layer, m.pt\nh.*.weight\n 0   0\n 1   2  ##\n")
    has(out, "\n10  20  ######################\n") -- 10 comes behind 9
    has(select(2, run(dir, "plot", "m.pt", "h.*", "--by-layer", "--of", "mean")),
      "\n            0    5    10\nh.*.bias    ███████████  1 to 1\nh.*.weight  ▁▁▂▃▄▅▅▆▇██  0 to 10\n")
  end)

  it("suggests the weights of all layers for a part of their names", function()
    local dir = make()
    for part, glob in pairs { weight = "h.*.weight", wieght = "h.*.weight", ["h.3"] = "h.*.", ["3.bias"] = "h.*.bias" } do
      local code, _, err = run(dir, "plot", "m.pt", part, "--by-layer")
      equal(code, 1)
      has(err, ("matches '%s' with a number in its key; did you mean '%s"):format(part, glob))
    end
  end)

  it("knows the number of the layer under many names", function()
    for format, name in pairs {
      ["core.block_%02d.w.weight"] = "core.block_*.w.weight",
      ["a/%d/b"] = "a/*/b",
      ["model/h%d/w"] = "model/h*/w",
      ["0.auto_model.encoder.layer.%d.w"] = "0.auto_model.encoder.layer.*.w",
      ["h.%d.ln_1.w"] = "h.*.ln_1.w",
    } do
      local dir, root = harness.temp_dir(), cbk.dict()
      for layer = 0, 11 do root[format:format(layer)] = cbk.full({ 1 }, layer) end
      cbk.create(dir .. "/m.pt", { root = root }):commit()
      local out = select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--ascii", "--width", "60"))
      has(out, "by layer, m.pt\n" .. name .. "\n 0   0\n 1   1  ###")
      has(out, "\n11  11  ####")
    end
  end)

  it("takes the blocks of a stage for layers, and not its stages or experts", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for stage, count in ipairs { 3, 9 } do
      for block = 0, count - 1 do root[("stages.%d.blocks.%d.w"):format(stage, block)] = cbk.full({ 1 }, block) end
    end
    for layer = 0, 1 do
      for expert = 0, 7 do root[("h.%d.experts.%d.w"):format(layer, expert)] = cbk.full({ 1 }, expert) end
    end
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local out = select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--ascii", "--width", "80"))
    has(out, "\nstages.1.blocks.*.w ")
    has(out, "\nstages.2.blocks.*.w ")
    has(out, "\nh.*.experts.7.w ")
  end)

  it("draws numbers of layers on a logarithmic scale", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for layer = 0, 3 do
      root[("h.%d.a"):format(layer)], root[("h.%d.b"):format(layer)] = cbk.full({ 1 }, 10 ^ layer), cbk.full({ 1 }, layer == 1 and 0 or 1)
    end
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    has(select(2, run(dir, "plot", "m.pt", "*", "--by-layer")), "h.*.b     █▁██  0 to 1\nh.*.a     ▁▁▁█  1 to 1e+3\n")
    has(select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--log")), "h.*.b     █ ██  1 to 1\nh.*.a     ▁▃▆█  1 to 1e+3\n"
      .. "(no bars for numbers that are not above 0: the scale is logarithmic)\n")
    has(select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--log", "--of", "nan")), "\nh.*.a           none above 0\n")
    local bars = select(2, run(dir, "plot", "m.pt", "h.*.a", "--by-layer", "--log", "--ascii", "--width", "40"))
    has(bars, "0     1  #\n1    10  ###########\n2   100  #####################\n3  1e+3  ###############################\n")
    equal((run(dir, "plot", "m.pt", "*", "--by-layer", "--log", "-o", "x.svg")), 0)
    local svg = cbk.fs.read(dir .. "/x.svg")
    has(svg, "(no points for numbers that are not above 0: the scale is logarithmic)")
    equal(select(2, svg:gsub('width="5" height="5"', "")), 7) -- of 8 tensors
  end)

  it("leaves the column of a layer blank that a series lacks, and marks NaN and infinities", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for layer = 0, 3 do
      if layer ~= 1 then root[("h.%d.a"):format(layer)] = cbk.full({ 1 }, layer) end
      if layer ~= 3 then root[("h.%d.b"):format(layer)] = cbk.tensor { 1, layer == 2 and 0 / 0 or 1 } end
    end
    root["h.3.b"] = cbk.full({ 0 }, 1) -- has no maximum
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local function drawn(...) return select(2, run(dir, "plot", "m.pt", "--by-layer", "--of", "max", "--ascii", "--width", "40", ...)) end
    has(drawn "*", "\n          0\nh.*.a     _ *@  0 to 3\nh.*.b     @@!   1 to 1\n! NaN or infinities in h.2.b\n")
    has(drawn "h.*.b", "\n1    1    ##############################\n"
      .. "2    1 !  ##############################\n3  nan\n! NaN or infinities in h.2.b\n")
    is_true(not drawn("*", "--of", "nan"):find("!", 1, true)) -- these are the numbers that are drawn
    run(dir, "plot", "m.pt", "*", "--by-layer", "-o", "x.svg")
    has(cbk.fs.read(dir .. "/x.svg"), "! NaN or infinities in h.2.b")
  end)

  it("draws negative numbers to the left of the zero", function()
    local dir = harness.temp_dir()
    local root = cbk.dict { { "h.0", cbk.full({ 1 }, -2) }, { "h.1", cbk.full({ 1 }, 0) }, { "h.2", cbk.full({ 1 }, 4) },
      { "h.3", cbk.full({ 1 }, -4) }, { "h.4", cbk.full({ 1 }, 0 / 0) } }
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local function bars(...) return select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--of", "mean", "--width", "30", ...)) end
    has(bars "--ascii", "\n0   -2        #####|\n1    0             |\n"
      .. "2    4             |##########\n3   -4    #########|\n4  nan !           |\n! NaN or infinities in h.4\n")
    has(bars(), "\n3   -4    █████████│\n")
    has(bars("--log", "--ascii"), "\n2    4    ####################\n3   -4\n4  nan !\n"
      .. "(no bars for numbers that are not above 0: the scale is logarithmic)\n! NaN or infinities in h.4\n")
  end)

  it("has a cell for each layer, and an axis, also where names are long", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for layer = 0, 69 do
      for _, name in ipairs { "a_long_name_of_a_module.weight", "another_long_name.weight" } do
        root[("transformer.h.%d.%s"):format(layer, name)] = cbk.full({ 1 }, layer == 21 and 30 or 1)
      end
    end
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    local out = select(2, run(dir, "plot", "m.pt", "*", "--by-layer", "--width", "100"))
    has(out, "\n  0    5    10   15   20   25   30   35   40   45   50   55   60   65\n")
    has(out, "transformer.h.*.another_long_name.weight\n  " .. ("▁"):rep(21) .. "█" .. ("▁"):rep(48) .. "  1 to 30\n")
    for line in out:gmatch "[^\n]+" do is_true(cbk.terminal.columns(line) <= 100, line) end
  end)

  it("writes SVG and PNG", function()
    local dir = make()
    for _, words in ipairs { { HOSTILE }, { HOSTILE, "--heat-map" }, { "h.*", "--by-layer" }, { "empty" } } do
      for _, suffix in ipairs { "svg", "png" } do
        local code, out, err = run(dir, "plot", "m.pt", "-o", "x." .. suffix, "--overwrite", unpack(words))
        equal({ code, out, err }, { 0, "x." .. suffix .. "\n", "" })
      end
      local svg = cbk.fs.read(dir .. "/x.svg")
      is_true(not svg:find("<script", 1, true) and not svg:find "%c[^\n]?%[31m")
      if words[1] == HOSTILE then has(svg, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\\x1b[31m") end
      equal(cbk.fs.read(dir .. "/x.png"):sub(1, 8), "\137PNG\r\n\26\n")
    end
    local code, _, err = run(dir, "plot", "m.pt", "spread", "-o", "x.svg")
    equal(code, 1)
    has(err, "--overwrite")
  end)

  for words, message in pairs {
    ["--heat-map --by-layer"] = "exclude each other",
    ["--of norm"] = "--of needs --heat-map or --by-layer",
    ["--heat-map --bins 10"] = "--bins are those of a histogram",
    ["--by-layer --bins 10"] = "--bins are those of a histogram",
    ["--heat-map --of norm"] = "--of 'norm': expected one of rms, mean, min, max",
    ["-o x.pdf"] = "expected a name that ends with .svg or .png",
    ["-o x.png --json"] = "exclude each other",
    ["--heat-map --log --of mean"] = "--log does not show a mean",
  } do
    it("refuses " .. words, function()
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      local code, _, err = run(make(), "plot", "m.pt", "spread", unpack(list))
      equal(code, 2)
      has(err, message)
    end)
  end

  it("prints integers as they are", function()
    local _, out = run(make(), "plot", "m.pt", "ids")
    has(out, "min 1  max 2 ")
  end)

  it("advises --by-layer only where keys have numbers", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/m.pt", { root = cbk.dict { { "fa", cbk.full({ 2 }, 1) }, { "fb", cbk.full({ 2 }, 1) } } }):commit()
    has(select(3, run(dir, "plot", "m.pt", "f*")), "several keys match 'f*'; name one of them")
  end)

  it("draws the tensor that a glob matches, and parts of tensors", function()
    local dir = make()
    has((select(2, run(dir, "plot", "m.pt", "spr*"))), "spread  float32 [")
    local _, out = run(dir, "plot", "m.pt", "ids[1:]", "--json")
    local part = cbk.config.parse(out, "json")
    equal({ part.key, cbk.totable(part.shape) }, { "ids[1:]", { cbk.open(dir .. "/m.pt").ids:shape()[1] - 1 } })
    has((select(2, run(dir, "plot", "m.pt", "h.*.weight[0]", "--by-layer"))), "\nh.*.weight[0]")
    has(select(3, run(dir, "plot", "m.pt", "ids[9]")), "position 9 is outside of dim 0 of 'ids'")
    has(select(3, run(dir, "plot", "m.pt", "ids[9:]")), "'9:' selects nothing of dim 0 of 'ids'")
    has(select(3, run(dir, "export", "m.pt", "ids[9:]", "-o", "ids.npy")), "'9:' selects nothing of dim 0 of 'ids'")
    has(select(3, run(dir, "plot", "m.pt", "idz[1:]")), "'m.pt' has no key 'idz[1:]'; did you mean 'ids'")
  end)

  it("says what is wrong with a key", function()
    local dir = make()
    for key, message in pairs {
      spraed = "'m.pt' has no key 'spraed'; did you mean 'spread'?", ["h.*"] = "several keys match 'h.*'; --by-layer draws them all",
      note = "'note' is not a tensor (str)", wave = "cannot draw 'wave': complex64 numbers have no order",
    } do
      local code, _, err = run(dir, "plot", "m.pt", key)
      equal(code, key == "h.*" and 2 or 1) -- the code `ambiguous`
      has(err, message)
    end
    local code, _, err = run(dir, "plot", "m.pt", "spread", "--by-layer")
    equal(code, 1)
    has(err, "no tensor of 'm.pt' matches 'spread' with a number in its key")
    has(select(3, run(dir, "plot", "m.pt", "empty", "--heat-map")), "cannot draw a tensor without elements")
  end)
end)

describe("plots", function()
  it("know the layer of a key", function()
    equal({ layers.split { "h.12.a.3", "h.13.a.3" } }, { { ["h.12.a.3"] = "h.*.a.3", ["h.13.a.3"] = "h.*.a.3" },
      { ["h.12.a.3"] = 12, ["h.13.a.3"] = 13 } })
    equal({ layers.split { "0.layer.4.w", "0.layer.5.w" } }, { { ["0.layer.4.w"] = "0.layer.*.w", ["0.layer.5.w"] = "0.layer.*.w" },
      { ["0.layer.4.w"] = 4, ["0.layer.5.w"] = 5 } })
    equal({ layers.split { "7" } }, { { ["7"] = "*" }, { ["7"] = 7 } })
    equal({ layers.split { "weight" } }, { {}, {} })
  end)

  it("have numbers and colours for all places", function()
    equal({ scale.text(0 / 0), scale.text(-0), scale.text(1e-7), scale.text(123456) }, { "nan", "0", "1e-7", "1.23e+5" })
    equal({ scale.colour(0), scale.colour(1), scale.colour(0.5, true) }, { { 68, 1, 84 }, { 253, 231, 37 }, { 247, 247, 247 } })
    local colours = { { 0, 0, 0 }, { 255, 255, 255 }, { 255, 0, 255 } }
    for i, place in ipairs { 16, 231, 201 } do equal(scale.terminal_colour(colours[i]), place) end
    equal({ scale.range { 0 / 0, 1 / 0 } }, {})
  end)

  it("shorten long texts from their beginning", function()
    equal(figure.fitting("abcdefghij", 84), "...ghij")
    equal(figure.fitting("ab", 24), "ab")
  end)
end)

describe("t:grid", function()
  it("sees a matrix as blocks", function()
    local grid = cbk.tensor({ 1, 2, 3, 4, 5, 0 / 0 }, { shape = { 2, 3 } }):grid { rows = 1, columns = 3 }
    equal({ grid.rows, grid.columns, grid.mean, grid.max, grid.nan }, { 1, 3, { 2.5, 3.5, 3 }, { 4, 5, 3 }, { 0, 0, 1 } })
    equal(cbk.full({ 100, 90 }, 1):grid().rows, 64)
    harness.raises("a grid expects 2 dims", function() cbk.tensor({ 1 }):grid() end)
    harness.raises("rows", function() cbk.full({ 2, 2 }, 1):grid { rows = 0 } end)
  end)
end)
