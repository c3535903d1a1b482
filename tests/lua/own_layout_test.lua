-- Configs and files of layouts of a user's own: what a table says of them is used, and what is lost is named.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal, has = harness.describe, harness.it, harness.equal, harness.has

local TABLE = [[
  local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
  local acts = { forward = function(v) return ({ one = "uno", ein = "uno", two = "due" })[v] end,
    backward = function(v) return ({ uno = "one", due = "two" })[v] end, further_names = { ein = "uno" } }
  return { { model = "own", { %q, %q, keys = rules.keys { { "x", "y" } },
    config = fields.config { { "width", "dim" }, { "act", "activation", acts } }, %s } } }]]

---Runs cbk on a folder with two checkpoints of layout "a" and their configs.
local function folder(left, right, more)
  local dir = harness.temp_dir()
  cbk.fs.write(dir .. "/own.lua", TABLE:format(left, right, more or ""))
  for name, width in pairs { m = 2, n = 3 } do
    cbk.create(("%s/%s.safetensors"):format(dir, name), { root = cbk.dict { x = cbk.full({ width }, width) } }):commit { progress = false }
    cbk.config.save(cbk.dict { width = width, act = "one" }, ("%s/%s.json"):format(dir, name))
  end
  local function run(wanted, ...)
    local code, out, err = harness.cbk(dir, ...)
    equal(code, wanted, out .. err)
    return err
  end
  local function convert(file, to, ...) return run(0, "convert", file, "--converter", "own.lua", "--to", to, ...) end
  return dir, convert, run
end

describe("A layout of one's own", function()
  it("is read and written as the table's functions for its section say", function()
    local layout = [[layout = { right = { read = function(c) return { dim = c.net.dim, activation = c.net.activation } end,
      write = function(c) return { net = c } end } }]]
    local dir, convert = folder("a", "b", layout)
    convert("m.safetensors", "b", "--config", "m.json")
    local there = cbk.config.load(dir .. "/m_to_b.json")
    equal({ there.net.dim, there.net.activation, cbk.count(there) }, { 2, "uno", 1 })
    convert("m_to_b.safetensors", "a")
    local back = cbk.config.load(dir .. "/m_to_b_to_a.json")
    equal({ back.width, back.act }, { 2, "one" })
  end)

  it("has a section 'model' that belongs to the table", function()
    local text = TABLE:gsub('"dim"', '"model.dim"'):gsub('"activation"', '"model.activation"')
    local dir, convert = folder("a", "b")
    cbk.fs.write(dir .. "/own.lua", text:format("a", "b", 'nested = { right = { "model" } }'), { overwrite = true })
    convert("m.safetensors", "b", "--config", "m.json")
    equal(cbk.config.load(dir .. "/m_to_b.json").model.dim, 2)
    convert("m_to_b.safetensors", "a")
    equal(cbk.config.load(dir .. "/m_to_b_to_a.json").width, 2)
  end)

  it("takes the fields beside a section of the Model Zoo, and names the others", function()
    local dir, convert = folder("a", "cs-2.4", 'beside = { "activation" }')
    convert("m.safetensors", "cs-2.4", "--config", "m.json")
    local path = dir .. "/m_to_cs-2.4.yaml"
    local there = cbk.config.load(path)
    equal({ there.activation, there.model.dim, there.model.activation }, { "uno", 2, nil })
    there.runconfig = cbk.dict { max_steps = 5 }
    cbk.config.save(there, path, { overwrite = true })
    has(convert("m_to_cs-2.4.mdl", "a", "--config", "m_to_cs-2.4.yaml"), "files of the layout 'a' describe the model only; left out of the "
      .. "config: runconfig\n")
    local back = cbk.config.load(dir .. "/m_to_cs-2.4_to_a.json")
    equal({ back.width, back.act }, { 2, "one" })
  end)

  it("names values that do not come back, and those that are no tensors", function()
    local dir, convert = folder("a", "b")
    cbk.config.save(cbk.dict { width = 2, act = "ein" }, dir .. "/config.json")
    cbk.create(dir .. "/p.pt", { root = cbk.dict { x = cbk.full({ 2 }, 2), epoch = 3 } }):commit { progress = false }
    local err = convert("p.pt", "b")
    has(err, "act='ein' does not come back: b has one name for several values")
    has(err, "values that are no tensors are left out: epoch")
    equal(convert("m.safetensors", "b", "--config", "m.json"):find "come back", nil)
  end)

  it("is in the list of formats once, and no way leads through it; without tensors, there is nothing to convert", function()
    local dir, _, run = folder("a", "b", [[}, { "b", "c", keys = rules.keys { { "y", "z" } }, config = fields.config { { "*" } } },
      { "hf", "c", keys = rules.keys { { "z" } }, config = fields.config { { "*" } }]])
    local _, out = harness.cbk(dir, "list", "own", "--converter", "own.lua")
    equal(out, "own  hf, a, b, c\n")
    _, out = harness.cbk(dir, "list", "own", "--converter", "own.lua", "--all")
    equal(select(2, out:gsub("\nown ", "")), 6, out)
    cbk.create(dir .. "/none.pt", { root = cbk.dict { epoch = 3 } }):commit { progress = false }
    has(run(1, "convert", "none.pt", "--converter", "own.lua", "--to", "b", "--config", "m.json"), "nothing to convert")
  end)

  it("has a config of its own for each checkpoint, in any container", function()
    for kind, suffix in pairs { h5 = "h5", mdl = "mdl", torch = "pt", safetensors = "safetensors" } do
      local dir, convert = folder("a", "b", ("files = { right = %q }"):format(kind))
      for _, name in ipairs { "m", "n" } do convert(name .. ".safetensors", "b", "--config", name .. ".json") end
      for name, width in pairs { m = 2, n = 3 } do
        convert(("%s_to_b.%s"):format(name, suffix), "a")
        equal(cbk.config.load(("%s/%s_to_b_to_a.json"):format(dir, name)).width, width)
        local root = cbk.open(("%s/%s_to_b.%s"):format(dir, name, suffix)).root
        equal((kind == "mdl" and root.model or root).y:shape()[1], width)
      end
      local back = cbk.open(("%s/m_to_b_to_a.%s"):format(dir, suffix)).root
      equal((kind == "mdl" and back.model or back).x:shape()[1], 2)
    end
  end)

  it("is recognised by its keys, where its table needs no config", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[local rules = require "converters.engine.rules"
      return { { model = "own", { "a", "b", keys = rules.keys { { "x.w", "y.w" } }, without_config = true } } }]])
    cbk.create(dir .. "/a.pt", { root = cbk.dict { ["x.w"] = cbk.tensor { 1, 2 } } }):commit()
    cbk.create(dir .. "/b.pt", { root = cbk.dict { { "model", cbk.dict { ["y.w"] = cbk.tensor { 1, 2 } } }, { "step", 3 } } }):commit()
    for layout, other in pairs { a = "b", b = "a" } do
      local code, out, err = harness.cbk(dir, "identify", layout .. ".pt", "--converter", "own.lua")
      equal({ code, err }, { 0, "" })
      has(out, ("model    own\nformat   %s\n"):format(layout))
      has(out, ("convert  cbk convert %s.pt --to %s --src-fmt %s --converter own.lua\n"):format(layout, other, layout))
      code, out = harness.cbk(dir, "diff", layout .. ".pt", other .. ".pt", "--converter", "own.lua", "--model", "own")
      equal({ code, out }, { 0, ("comparing %s.pt as %s\nthe same: 1 value\n"):format(layout, other) })
    end
  end)

  it("is one table's, whether the config is named or not", function()
    local other = [[without_config = true }, { "a", "cs-2.4", keys = rules.keys { { "x", "z" } }, config = fields.config { { "*" } } ]]
    local dir, convert = folder("hf", "cs-2.4", other)
    cbk.config.save(cbk.dict { width = 2, act = "one", model_type = "gpt2" }, dir .. "/config.json")
    convert("m.safetensors", "cs-2.4")
    equal(cbk.keys(cbk.open(dir .. "/m_to_cs-2.4.mdl").root.model), { "y" })
    cbk.fs.remove(dir .. "/m_to_cs-2.4.mdl")
    convert("m.safetensors", "cs-2.4", "--config", "m.json")
    equal(cbk.keys(cbk.open(dir .. "/m_to_cs-2.4.mdl").root.model), { "y" })
  end)

  it("has no options without effect, and functions that return configs", function()
    for text, said in pairs {
      ['"a", "cs-2.4", files = { right = "h5" }'] = "'files.right' has no effect: 'cs-2.4' is not a layout of one's own",
      ['"a", "b", beside = { "dim" }'] = "'beside' has no effect: neither side is a release",
      ['"a", "b", mup = false'] = "'mup' has no effect", ['"hf", "b", named_from = "2.1"'] = "'named_from' has no effect",
      ['"a", "b", layout = { right = { read = print, write = function() return 3 end } }'] = "layout.right.write must return a config",
      ['"a", "b", finish = { right = function() return { 1, 2 } end }'] = "finish.right must return a config",
      ['"a", "b", prepare = { left = function(c) return 3 end }'] = "prepare.left must return a config",
    } do
      local dir, _, run = folder("a", "b")
      local left, right, more = text:match '^"(.-)", "(.-)", (.*)$'
      cbk.fs.write(dir .. "/own.lua", TABLE:format(left, right, more), { overwrite = true })
      has(run(1, "convert", "m.safetensors", "--converter", "own.lua", "--src-fmt", left, "--to", right, "--config", "m.json"), said)
    end
    local dir, convert = folder("a", "b", "prepare = { left = function(c) return { width = c.width + 1, act = c.act } end }")
    convert("m.safetensors", "b", "--config", "m.json")
    equal(cbk.config.load(dir .. "/m_to_b.json").dim, 3)
  end)

  it("gives its functions the checkpoint and the file, and errors without a text a text", function()
    local finish = "finish = { right = function(to, from, read) to.has = read.source ~= nil and read.file.act end }"
    local dir, convert, run = folder("a", "b", finish)
    convert("m.safetensors", "b", "--config", "m.json")
    equal(cbk.config.load(dir .. "/m_to_b.json").has, "one")
    cbk.fs.write(dir .. "/own.lua", TABLE:format("a", "b", "finish = { right = function() error() end }"), { overwrite = true })
    has(run(1, "convert-config", "m.json", "--src-fmt", "a", "--to", "b", "--converter", "own.lua", "-o", "o"),
      "a function of the converter called error() without a text")
  end)
end)
