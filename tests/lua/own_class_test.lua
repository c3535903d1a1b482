-- A converter of one's own with a class of its own: what does not fit the classes is reported.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local TABLE = [[
local class = require "converters.engine.class"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local size, depth = class.makers "size depth"
local function make(name)
  return class.new(name) {
    fields = { hidden_size = size(), num_hidden_layers = depth() },
    tensors = function()
      return { class.each("layers", "num_hidden_layers", { class.linear("ff", "hidden_size", "hidden_size", false) }) }
    end,
  }
end
return { {
  model = "own", classes = { left = make "Left", right = %s },
  { "hf", "cs-2.4", keys = rules.keys { { "layers.N.ff.weight", "layers.N.%s.weight" } },
    config = fields.config { { "hidden_size" }, { "num_hidden_layers" }, fields.fixed.left { model_type = "own" } } },
} }
]]

---A folder with the converter and a checkpoint of two layers.
local function folder(right, key)
  local dir, root = harness.temp_dir(), cbk.dict()
  for i = 0, 1 do root[("layers.%d.ff.weight"):format(i)] = cbk.full({ 4, 4 }, 1, { dtype = "float32" }) end
  cbk.create(dir .. "/m.safetensors", { root = root }):commit { progress = false }
  cbk.fs.write(dir .. "/own.lua", TABLE:format(right, key))
  return dir
end

---@return integer code, string stderr
local function convert(dir, layers)
  cbk.config.save(cbk.dict { model_type = "own", hidden_size = 4, num_hidden_layers = layers }, dir .. "/config.json")
  local code, _, stderr = harness.cbk(dir, "convert", "--converter", "own.lua", "--model", "own", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4",
    "--config", "config.json", "m.safetensors")
  return code, stderr
end

local function has(text, part) is_true(text:find(part, 1, true), text) end

describe("A class of one's own", function()
  it("is converted without a word", function()
    local code, stderr = convert(folder("make 'Right'", "ff"), 2)
    equal({ code, stderr }, { 0, "" })
  end)

  it("names what the target's class does not have", function()
    local code, stderr = convert(folder("make 'Right'", "fff"), 2)
    equal(code, 0)
    has(stderr, "the output lacks 2 weights that its model needs: layers.0.ff.weight, layers.1.ff.weight")
    has(stderr, "the output has 2 tensors that Right does not have: layers.0.fff.weight, layers.1.fff.weight")
  end)

  it("reports a side without a class", function()
    local code, stderr = convert(folder("make.Rigth", "ff"), 2)
    is_true(code ~= 0, stderr) -- an index of a function
    code, stderr = convert(folder("nil", "ff"), 2)
    equal(code, 0, stderr)
    has(stderr, "no class describes 'own' in cs-2.4")
  end)

  it("names the field that counts layers which are not there", function()
    local code, stderr = convert(folder("make 'Right'", "ff"), 4)
    equal(code, 1)
    has(stderr, "the config says num_hidden_layers=4, and the checkpoint has nothing below 'layers.2.'")
  end)
end)

describe("GPT-2's n_ctx", function()
  it("is no other name of n_positions, as in its class", function()
    local class = require "converters.classes.hf.gpt2".GPT2LMHeadModel
    equal(class:by_name().n_ctx == class:by_name().n_positions, false)
  end)
end)
