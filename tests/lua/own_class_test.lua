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
  for i = 0, 1 do root[("layers.%d.ff.weight"):format(i)] = cbk.randn({ 4, 4 }, { seed = i, dtype = "float32" }) end
  cbk.create(dir .. "/m.safetensors", { root = root }):commit { progress = false }
  cbk.fs.write(dir .. "/own.lua", TABLE:format(right, key))
  return dir
end

---@return integer code, string stderr
local function convert(dir, layers)
  cbk.config.save(cbk.dict { model_type = "own", hidden_size = 4, num_hidden_layers = layers }, dir .. "/config.json", { overwrite = true })
  local code, _, stderr = harness.cbk(dir, "convert", "--converter", "own.lua", "--model", "own", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4",
    "--config", "config.json", "m.safetensors")
  return code, stderr
end

local has = harness.has

describe("A class of one's own", function()
  it("is converted without a word", function()
    local code, stderr = convert(folder("make 'Right'", "ff"), 2)
    equal({ code, stderr }, { 0, "" })
  end)

  it("names what the target's class does not have", function()
    local code, stderr = convert(folder("make 'Right'", "fff"), 2)
    equal(code, 0)
    has(stderr, "the output lacks 2 weights that its model needs: layers.{0,1}.ff.weight")
    has(stderr, "the output has 2 tensors that Right does not have: layers.{0,1}.fff.weight")
  end)

  it("reads a config as the table does, in all commands", function()
    for what, case in pairs {
      layout = "layout = { left = { read = function(c) return { width = c.d } end, write = function(c) return c end } }",
      defaults = "defaults = { left = { width = 8 } }",
      prepare = "prepare = { left = function(c) c.width = 8 end }",
    } do
      local dir = harness.temp_dir()
      cbk.fs.write(dir .. "/own.lua", ([[
        local class, rules = require "converters.engine.class", require "converters.engine.rules"
        local size, fields = class.makers "size", require "converters.engine.fields"
        local function made(name)
          return class.new(name) { fields = { width = size(4) }, tensors = function() return { { "w", { "width" } } } end }
        end
        return { { model = "own", { "hf", "cs-2.4", classes = { left = made "L", right = made "R" }, keys = rules.keys { { "w" } },
          config = fields.config { { "width" } }, %s } } }]]):format(case))
      cbk.config.save(cbk.dict { model_type = "own", d = what == "layout" and 8 or nil }, dir .. "/config.json")
      cbk.create(dir .. "/m.safetensors", { root = cbk.dict { w = cbk.full({ 8 }, 1) } }):commit { progress = false }
      for _, words in ipairs { { "check", "m.safetensors" }, { "convert", "m.safetensors", "--to", "cs-2.4" }, { "params", "config.json" },
        { "new", "config.json", "-o", "new.safetensors" }, { "convert", "new.safetensors", "--to", "cs-2.4" } } do
        local code, out, err = harness.cbk(dir, words[1], "--converter", "own.lua", "--overwrite", unpack(words, 2))
        if words[1] == "check" or words[1] == "params" then
          code, out, err = harness.cbk(dir, words[1], "--converter", "own.lua", words[2])
        end
        equal(code, 0, what .. words[1] .. out .. err)
        if words[1] == "check" then has(out, "clean") end
      end
      equal(cbk.open(dir .. "/new.safetensors").root.w:shape(), { 8 })
    end
  end)

  it("has the history of a table's class, and the table's own class where others have a layout", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local class, rules, fields = require "converters.engine.class", require "converters.engine.rules", require "converters.engine.fields"
      local size, number = class.makers "size number"
      local function made(name, ...)
        local list = { ... }
        return class.new(name) { fields = { width = size(4), rope = number(1) }, history = { rope = { "2.3", 1 } },
          tensors = function() return list end }
      end
      local w, more = { "w", { "width" } }, { "more", { "width" } }
      local keys, config = rules.keys { { "w" } }, fields.config { { "width" }, { "rope" } }
      return { { model = "own",
        { "a", "cs-2.1 .. cs-2.9", classes = { left = made("A", w), right = made("S", w) }, keys = keys, config = config },
        { "hf", "cs-2.1 .. cs-2.9", classes = { left = made("L", w), right = made("R", w, more) }, keys = keys, config = config } } }]])
    cbk.create(dir .. "/m.safetensors", { root = cbk.dict { w = cbk.full({ 4 }, 1) } }):commit { progress = false }
    local function converted(to, rope)
      cbk.config.save(cbk.dict { width = 4, rope = rope }, dir .. "/config.json", { overwrite = true })
      local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--converter", "own.lua", "--src-fmt", "hf", "--to", to, "--config",
        "config.json", "--overwrite")
      return code, err
    end
    local code, err = converted("cs-2.1", 7)
    equal(code, 1)
    has(err, "rope=7: only 1, before release 2.3")
    code, err = converted("cs-2.4", 1)
    equal(code, 0)
    has(err, "the output lacks 1 weight that its model needs: more")
  end)

  it("is of the formats of its table alone", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local class, rules, fields = require "converters.engine.class", require "converters.engine.rules", require "converters.engine.fields"
      local function made(name, key)
        return class.new(name) { fields = {}, tensors = function() return { { key, { 2 } } } end }
      end
      local config = fields.config { { "*" } }
      return { { model = "own",
        { "a", "hf", classes = { left = made("A", "x"), right = made("H", "y") }, keys = rules.keys { { "x", "y" } }, config = config },
        { "hf", "cs-2.4", keys = rules.keys { { "y", "z" } }, config = config } } }]])
    cbk.config.save(cbk.dict { width = 2 }, dir .. "/config.json")
    cbk.create(dir .. "/m.safetensors", { root = cbk.dict { y = cbk.full({ 2 }, 1) } }):commit { progress = false }
    local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--converter", "own.lua", "--src-fmt", "hf", "--to", "cs-2.4",
      "--config", "config.json")
    equal(code, 0, err)
    has(err, "no class describes 'own' in cs-2.4")
    local _, out = harness.cbk(dir, "params", "config.json", "--converter", "own.lua", "--format", "a")
    has(out, "x       [2]")
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

describe("Layouts of one's own with classes", function()
  local function own(right, key)
    local dir = folder(right, key)
    cbk.fs.write(dir .. "/own.lua", (TABLE:format(right, key):gsub('"hf", "cs%-2%.4"', '"a", "b"')), { overwrite = true })
    return dir
  end

  ---Layouts that their names tell apart.
  local function own_apart()
    local dir = own("make 'Right'", "gg")
    local text = cbk.fs.read(dir .. "/own.lua"):gsub('"ff", "hidden_size"', 'name == "Left" and "ff" or "gg", "hidden_size"')
    cbk.fs.write(dir .. "/own.lua", text, { overwrite = true })
    return dir
  end

  local function run(dir, layers, ...)
    local config = cbk.dict { model_type = "own", hidden_size = 4, num_hidden_layers = layers }
    cbk.config.save(config, dir .. "/config.json", { overwrite = true })
    return harness.cbk(dir, ...)
  end

  it("are known without an option in the user's folders, with all rights", function()
    local dir = own_apart()
    run(dir, 2, "list")
    cbk.fs.mkdir(dir .. "/home/.config/cbk/converters")
    cbk.fs.write(dir .. "/home/.config/cbk/converters/own.lua", cbk.fs.read(dir .. "/own.lua"))
    for _, environment in ipairs { "HOME='" .. dir .. "/home'", "XDG_CONFIG_HOME='" .. dir .. "/home/.config'" } do
      local function cbk_runs(...)
        local code, out, err = harness.cbk_with("CBK_PATH= " .. environment, dir, ...)
        equal({ code, err }, { 0, "" })
        return out
      end
      local listed = cbk_runs("list", "own")
      has(listed, "own  a, b\n  own is your own: " .. dir .. "/home/.config/cbk/converters/own.lua\n")
      has(cbk_runs("identify", "m.safetensors"), "--src-fmt a")
      cbk_runs("convert", "m.safetensors", "--to", "b", "--overwrite")
      cbk_runs("check", "m.safetensors")
    end
    cbk.fs.mkdir(dir .. "/tools/converters")
    cbk.fs.write(dir .. "/tools/converters/own.lua", cbk.fs.read(dir .. "/own.lua"))
    local here = "HOME=/nowhere XDG_CONFIG_HOME= "
    equal((harness.cbk_with(here .. "CBK_PATH='" .. dir .. "/tools'", dir, "list", "own")), 0)
    equal((harness.cbk_with(here .. "CBK_PATH=tools", dir, "list", "own")), 1) -- a relative folder may be anyone's
    cbk.fs.write(dir .. "/tools/converters/bad.lua", "return 7")
    local code, _, err = harness.cbk_with(here .. "CBK_PATH='" .. dir .. "/tools'", dir, "list", "own")
    equal(code, 0)
    has(err, "warning: the converter '" .. dir .. "/tools/converters/bad.lua' is left out: ")
    code, _, err = harness.cbk_with(here .. "CBK_PATH='" .. dir .. "/tools'", dir, "list", "own", "--converter", "own.lua", "--sandbox")
    equal({ code, err }, { 0, "" }) -- which leaves these folders out
  end)

  it("are found by the config where no class describes them", function()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/tools/converters")
    local function write(model)
      cbk.fs.write(dir .. "/tools/converters/own.lua", ([[
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
return { { model = "%s", { "hf", "cs-2.1 .. cs-2.9",
  keys = rules.keys { { "embed.weight", "embedding_layer.word_embeddings.weight" }, { "blocks.N.w", "layers.N.w" } },
  config = fields.config { { "width", "hidden_size" }, fields.fixed.left { model_type = "%s" } } } } }]]):format(model, model),
        { overwrite = true })
    end
    write "tiny"
    local zeros = cbk.full({ 2, 2 }, 0)
    local tensors = cbk.dict { { "embed.weight", zeros }, { "blocks.0.w", zeros + 1 }, { "blocks.1.w", zeros + 2 } }
    cbk.create(dir .. "/hf/model.safetensors", { root = tensors }):commit()
    cbk.config.save(cbk.dict { model_type = "tiny", width = 2 }, dir .. "/hf/config.json")
    local function say(part, ...)
      local _, out, err = harness.cbk_with("HOME=/nowhere XDG_CONFIG_HOME= CBK_PATH='" .. dir .. "/tools'", dir, ...)
      has(out .. err, part)
    end
    say("all keys fit rules of tiny in '" .. dir .. "/tools/converters/own.lua', which has no class", "identify", "hf")
    say("Checkpoint saved to cs/hf_to_cs-2.4.mdl", "convert", "hf", "--to", "cs-2.4", "-o", "cs")
    say("Checkpoint saved to back/", "convert", "cs/hf_to_cs-2.4.mdl", "--to", "hf", "-o", "back")
    write "llama" -- in place of cbk's
    cbk.config.save(cbk.dict { model_type = "llama", width = 2 }, dir .. "/hf/config.json", { overwrite = true })
    tensors["blocks.1.b"] = zeros + 3
    cbk.create(dir .. "/hf/model.safetensors", { root = tensors, overwrite = true }):commit()
    say("llama is the model of '" .. dir .. "/tools/converters/own.lua', which has no rule for 'blocks.1.b'", "convert", "hf", "--to",
      "cs-2.4")
  end)

  it("are checked by them, in every command", function()
    local dir = own("make 'Right'", "ff")
    local command = { "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config", "config.json", "m.safetensors" }
    local code, _, stderr = run(dir, 2, unpack(command))
    equal({ code, stderr }, { 0, "" })
    command[#command + 1], command[#command + 2] = "-o", "more"
    code, _, stderr = run(dir, 4, unpack(command))
    equal({ code, cbk.fs.exists(dir .. "/more") }, { 1, false })
    has(stderr, "the config says num_hidden_layers=4, and the checkpoint has nothing below 'layers.2.'")
    local found, out = harness.cbk(dir, "rules", "own.lua", "m.safetensors", "--config", "config.json")
    equal(found, 1)
    has(out, "nothing below 'layers.2.'")
  end)

  it("are recognised, so that the command that identify prints converts them, there and back", function()
    local dir = own_apart()
    local function identified(file)
      local code, out, err = harness.cbk(dir, "identify", file, "--converter", "own.lua", "--json")
      equal(code, 0, err)
      return cbk.config.parse(out, "json")
    end
    local function follow(found)
      local words = {}
      for word in found.command:gmatch "%S+" do words[#words + 1] = word end
      local code, _, err = harness.cbk(dir, unpack(words, 2))
      equal({ code, err }, { 0, "" })
    end
    run(dir, 2, "list")
    local left = identified "m.safetensors"
    equal({ left.format, left.class, left.command:match "%-%-src%-fmt a" }, { "a", "Left", "--src-fmt a" })
    follow(left)
    local right = identified "m_to_b.safetensors"
    equal({ right.format, right.class, cbk.fs.basename(right.config) }, { "b", "Right", "m_to_b.json" })
    follow(right)
    equal((harness.cbk(dir, "diff", "m.safetensors", "m_to_b_to_a.safetensors")), 0)
    equal((harness.cbk(dir, "diff", "m.safetensors", "m_to_b.safetensors", "--model", "own", "--converter", "own.lua")), 0)
    for _, file in ipairs { "m.safetensors", "m_to_b.safetensors", "m_to_b_to_a.safetensors" } do
      local code, out = harness.cbk(dir, "check", file, "--converter", "own.lua")
      equal({ code, out:match "clean" }, { 0, "clean" }, out)
    end
    local _, out = harness.cbk(dir, "params", "m_to_b.json", "--converter", "own.lua", "--format", "b")
    has(out, "layers.{0,1}.gg.weight")
  end)

  it("are found in wrappers, and what no rule fits is named by all commands", function()
    local dir = own_apart()
    local function write(name, prefix, more)
      local root = cbk.dict()
      for i = 0, 1 do root[("%slayers.%d.ff.weight"):format(prefix, i)] = cbk.randn({ 4, 4 }, { seed = i, dtype = "float32" }) end
      if more then root[more] = cbk.randn({ 4 }, { seed = 9, dtype = "float32" }) end
      cbk.create(("%s/%s.safetensors"):format(dir, name), { root = root }):commit { progress = false }
    end
    write("wrapped", "module._orig_mod.")
    write("more", "", "layers.0.ff.bias")
    local function said(file, command, ...)
      local words = command == "rules" and { "own.lua", file } or { file, "--converter", "own.lua", ... }
      local code, out, err = run(dir, 2, command, "--config", "config.json", unpack(words))
      return code, out .. err
    end
    for _, command in ipairs { "identify", "check", "rules" } do equal((said("wrapped.safetensors", command)), 0, command) end
    equal((said("wrapped.safetensors", "convert", "--src-fmt", "a", "--to", "b")), 0)
    local made, given = cbk.open(dir .. "/wrapped_to_b.safetensors").root, cbk.open(dir .. "/m.safetensors").root
    for i = 0, 1 do is_true(made[("layers.%d.gg.weight"):format(i)]:compare(given[("layers.%d.ff.weight"):format(i)]).same_bits) end
    local _, out = said("more.safetensors", "identify")
    has(out, "it cannot be converted: Left has no such tensor: layers.0.ff.bias")
    for command, status in pairs { check = 1, rules = 1, convert = 1 } do
      local options = command == "convert" and { "--src-fmt", "a", "--to", "b", "-o", "o" } or {}
      local code, why = said("more.safetensors", command, unpack(options))
      equal(code, status)
      has(why, "layers.0.ff.bias")
    end
  end)

  it("are made where convert writes them", function()
    local dir = own_apart()
    run(dir, 2, "list")
    for _, words in ipairs { { "new", "config.json", "--converter", "own.lua", "--format", "a", "-o", "a.mdl" },
      { "convert", "a.mdl", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config", "config.json" },
      { "convert", "a_to_b.mdl", "--converter", "own.lua", "--to", "a" }, { "diff", "a.mdl", "a_to_b_to_a.mdl" } } do
      local code, out, err = harness.cbk(dir, unpack(words))
      equal(code, 0, out .. err)
    end
  end)

  it("have configs that convert-config converts", function()
    local dir = own_apart()
    for _, way in ipairs { { "config.json", "a", "b" }, { "config_to_b.json", "b", "a" } } do
      local file, from, to = unpack(way)
      local code, _, err = run(dir, 2, "convert-config", file, "--converter", "own.lua", "--model", "own", "--src-fmt", from, "--to", to)
      equal(code, 0, err)
    end
    local back = cbk.config.load(dir .. "/config_to_b_to_a.json")
    for name, value in cbk.items(cbk.config.load(dir .. "/config.json")) do equal(back[name], value) end
  end)

  it("are a conversion by themselves", function()
    local dir = folder("make 'Right'", "ff")
    cbk.fs.write(dir .. "/own.lua", (TABLE:format("make 'Right'", "ff"):gsub('"hf", "cs%-2%.4"', '"a", "cs-2.4"')), { overwrite = true })
    local function to_format(file, to)
      local code, _, stderr = run(dir, 2, "convert", file, "--converter", "own.lua", "--to", to)
      return code, stderr
    end
    equal({ to_format("m.safetensors", "cs-2.9") }, { 1, "cbk: cannot convert own from a to cs-2.9: a layout of your own is a "
      .. "conversion by itself: first convert to cs-2.4, and the result to cs-2.9\n" })
    equal({ to_format("m.safetensors", "cs-2.4") }, { 0, "" })
    equal({ to_format("m_to_cs-2.4.mdl", "cs-2.5") }, { 0, "" })
    local code, stderr = to_format("m_to_cs-2.4_to_cs-2.5.mdl", "a")
    equal(code, 1)
    has(stderr, "__metadata__ says release 2.5.0, and the converter reads cs-2.4: first convert it to cs-2.4")
    equal((to_format("m_to_cs-2.4.mdl", "a")), 0)
    local back = cbk.open(dir .. "/m_to_cs-2.4_to_a.mdl").root.model
    for key, t in cbk.tensors(cbk.open(dir .. "/m.safetensors").root) do is_true(back[key]:compare(t).same_bits, key) end
  end)

  ---A folder with tables that transpose, whose sides have the same names and shapes.
  local function turned(formats, ...)
    local dir, models = harness.temp_dir(), {}
    for _, name in ipairs { ... } do
      models[#models + 1] = ([[{ model = "%s", classes = { left = make "L%s", right = make "R%s" }, { %s,
        keys = rules.keys { { "%s.N.w", "%s.N.w", actions.transpose } }, config = fields.config { { "width" }, { "depth" } } } }]])
        :format(name, name, name, formats, name, name):gsub("make (\"[LR]" .. name .. "\")", "make(%1, '" .. name .. "')")
    end
    cbk.fs.write(dir .. "/own.lua", [[
      local actions, class = require "converters.vocabulary.actions", require "converters.engine.class"
      local fields, rules = require "converters.engine.fields", require "converters.engine.rules"
      local size, depth = class.makers "size depth"
      local function make(title, name)
        return class.new(title) { fields = { width = size(16), depth = depth(2) }, tensors = function()
          return { class.each(name, "depth", { { "w", { "width", "width" } } }) }
        end }
      end
      return { ]] .. table.concat(models, ", ") .. " }")
    cbk.fs.write(dir .. "/config.json", '{ "width": 5, "depth": 2 }')
    local first = ...
    equal((harness.cbk(dir, "new", "config.json", "--converter", "own.lua", "--model", first, "-o", "m.safetensors")), 0)
    return dir
  end

  it("with the same names and shapes must be named by the user", function()
    local dir = turned('"a", "b"', "l")
    local _, out = harness.cbk(dir, "identify", "m.safetensors", "--converter", "own.lua")
    has(out, "format   a (or b)")
    has(out, "it fits the layouts 'a' and 'b' alike")
    is_true(not out:find("cbk convert m", 1, true), out)
    local code, _, err = harness.cbk(dir, "diff", "m.safetensors", "m.safetensors", "--model", "l", "--converter", "own.lua")
    equal(code, 2)
    has(err, "fits the layouts a and b alike; name both formats")
  end)

  it("do not take the place of a release that the checkpoint states", function()
    local dir = turned('"a", "cs-2.1 .. cs-2.9"', "l")
    local function to_format(file, to)
      local code, _, err = harness.cbk(dir, "convert", file, "--converter", "own.lua", "--to", to)
      equal(code, 0, err)
    end
    to_format("m.safetensors", "cs-2.4")
    local _, out = harness.cbk(dir, "identify", "m_to_cs-2.4.mdl", "--converter", "own.lua")
    has(out, "--to cs-current")
    to_format("m_to_cs-2.4.mdl", "cs-2.6")
    local old, new = cbk.open(dir .. "/m_to_cs-2.4.mdl").root.model, cbk.open(dir .. "/m_to_cs-2.4_to_cs-2.6.mdl").root.model
    for key, t in cbk.tensors(old) do is_true(new[key]:compare(t).same_bits, key) end
    to_format("m_to_cs-2.4_to_cs-2.6.mdl", "a")
    local back, first = cbk.open(dir .. "/m_to_cs-2.4_to_cs-2.6_to_a.mdl").root.model, cbk.open(dir .. "/m.safetensors").root
    for key, t in cbk.tensors(first) do is_true(back[key]:compare(t).same_bits, key) end
    equal((harness.cbk(dir, "diff", "m.safetensors", "m_to_cs-2.4.mdl", "--model", "l", "--converter", "own.lua")), 0)
  end)

  it("are found among several models of a file", function()
    local dir = turned('"a", "b"', "l", "m")
    local code, out, err = harness.cbk(dir, "convert", "m.safetensors", "--src-fmt", "a", "--to", "b", "--converter", "own.lua")
    equal(code, 0, err)
    has(out, "Found: --model l")
  end)

  it("have configs with a section 'model' among others", function()
    local dir = turned('"a", "b"', "l")
    cbk.fs.write(dir .. "/other.json", '{ "model": { "width": 5 }, "attention": { "heads": 4 }, "width": 5, "depth": 2, "pct": 0.5 }')
    local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--src-fmt", "a", "--to", "b", "--converter", "own.lua", "--config",
      "other.json")
    equal(code, 0)
    has(err, 'config fields without a counterpart are left out: model={"width": 5}, attention={"heads": 4}, pct=0.5')
  end)

  it("are explained key by key, and shown before anything is written", function()
    local dir = own("make 'Right'", "ff")
    local function said(...)
      return run(dir, 2, "convert", "m.safetensors", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config",
        "config.json", ...)
    end
    local code, out = said("--explain", "layers.1.*")
    equal(code, 0)
    for _, text in ipairs { "  a -> b: layers.1.ff.weight", "with      N = 1", "does      copy: float32 [4, 4]" } do has(out, text) end
    code, out = said("--explain", "layer.1.ff.weight")
    equal(code, 1)
    has(out, "part 1 is 'layer', not 'layers'")
    code, out = said "--dry-run"
    equal({ code, cbk.fs.exists(dir .. "/m_to_b.safetensors") }, { 0, false })
    has(out, "keys read: 2; keys written: 2 (copy 2)")
  end)

  it("refuse layers beyond the config, also in rules, and sizes that the defaults contradict where there is no config", function()
    local dir = own("make 'Right'", "ff")
    local code, _, stderr = run(dir, 1, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config", "config.json",
      "m.safetensors")
    equal({ code, cbk.fs.exists(dir .. "/m_to_b.safetensors") }, { 1, false })
    has(stderr, "the config says num_hidden_layers=1, but the checkpoint has 'layers.1.ff.weight'")
    local found, out = harness.cbk(dir, "rules", "own.lua", "m.safetensors", "--config", "config.json")
    equal(found, 1)
    has(out, "the config says num_hidden_layers=1")
    cbk.fs.remove(dir .. "/config.json")
    cbk.fs.write(dir .. "/own.lua", (cbk.fs.read(dir .. "/own.lua"):gsub("size%(%)", "size(8)"):gsub("depth%(%)", "depth(2)")),
      { overwrite = true })
    code, _, stderr = harness.cbk(dir, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "m.safetensors")
    equal(code, 1)
    has(stderr, "the config contradicts 2 tensors of the checkpoint")
  end)

  it("have the defaults of the table where there is no config, or say that these need one", function()
    local dir = own("make 'Right'", "ff")
    local function said(default)
      local formats = '"a", "b", defaults = { left = { groups = ' .. default .. " } }"
      local text = TABLE:format("make 'Right'", "ff"):gsub('"hf", "cs%-2%.4"', (formats:gsub("%%", "%%%%")))
      cbk.fs.write(dir .. "/own.lua", (text:gsub("classes = %b{},", "")), { overwrite = true })
      return select(3, harness.cbk(dir, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "m.safetensors",
        "--overwrite"))
    end
    has(said "function(c) return c.heads / 2 end", "the table's defaults cannot be computed without a config")
    has(said "function() return 4 end", "fields have their defaults, if any")
  end)

  it("become a folder as Hugging Face has it, in shards if that is asked for", function()
    local dir = folder("make 'Right'", "ff")
    cbk.fs.write(dir .. "/own.lua", (TABLE:format("make 'Right'", "ff"):gsub('"hf", "cs%-2%.4"', '"a", "hf"')), { overwrite = true })
    local function convert_to(out, ...)
      local code, _, stderr = run(dir, 2, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "hf", "--config", "config.json",
        "m.safetensors", "-o", out, ...)
      equal({ code, stderr }, { 0, "" })
      return cbk.fs.list(dir .. "/" .. out .. "/m_to_hf")
    end
    equal(convert_to "one", { "config.json", "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json" })
    equal(convert_to("few", "--export-safetensors", "--single-file"), { "config.json", "model.safetensors" })
    local shards = convert_to("many", "--export-safetensors", "--hf-shard-size", "64B")
    equal(#shards, 4)
    equal((harness.cbk(dir, "diff", "many/m_to_hf", "m.safetensors")), 0)
    equal(cbk.config.load(dir .. "/many/m_to_hf/config.json").num_hidden_layers, 2)
  end)

  it("name tensors that differ though the config ties them, whichever side has a class", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local class, rules, fields = require "converters.engine.class", require "converters.engine.rules", require "converters.engine.fields"
      local size, boolean = class.makers "size boolean"
      local Own = class.new "Own" { fields = { width = size(), words = size(), tie_word_embeddings = boolean(true) },
        tensors = function() return { { "e", { "words", "width" } }, { "head", { "words", "width" }, tied = "e" } } end }
      return { { model = "own", classes = { left = Own },
        { "hf", "c", keys = rules.keys { { "e", "emb" }, { "head", "out" } },
          config = fields.config { { "width" }, { "words" }, { "tie_word_embeddings", "tied" } } } } }]])
    cbk.config.save(cbk.dict { width = 2, words = 3, tie_word_embeddings = true }, dir .. "/config.json")
    for differ, count in pairs { [false] = 0, [true] = 1 } do
      local head = cbk.full({ 3, 2 }, differ and 2 or 1)
      cbk.create(dir .. "/m.safetensors", { root = cbk.dict { e = cbk.full({ 3, 2 }, 1), head = head }, overwrite = true })
        :commit { progress = false }
      for _, words in ipairs { { "convert", "m.safetensors", "--to", "c" }, { "convert", "m_to_c.safetensors", "--to", "hf" } } do
        local code, _, err = harness.cbk(dir, words[1], words[2], "--converter", "own.lua", "--overwrite", unpack(words, 3))
        equal({ code, select(2, err:gsub("'e' differs from 'head', though the config ties them", "")) }, { 0, count }, err)
      end
      local code, out = harness.cbk(dir, "rules", "own.lua", "m.safetensors", "--config", "config.json")
      equal({ code, select(2, out:gsub("'e' differs from 'head'", "")) }, { count, count }, out)
    end
  end)

  it("name a head trained apart, which only the class that is written ties", function()
    for _, formats in ipairs { { "a", "b" }, { "hf", "b" }, { "hf", "cs-2.4" } } do
      local dir = harness.temp_dir()
      cbk.fs.write(dir .. "/own.lua", ([[
        local class, rules = require "converters.engine.class", require "converters.engine.rules"
        local size, fields = class.makers "size", require "converters.engine.fields"
        local function made(name, tie)
          return class.new(name) { fields = { width = size(2), words = size(3) }, tensors = function()
            return { { "e", { "words", "width" } }, { "head", { "words", "width" }, tied = tie } } end }
        end
        return { { model = "own", classes = { left = made("L"), right = made("R", "e") }, { %q, %q,
          keys = rules.keys { { "e" }, { "head" } }, config = fields.config { { "width" }, { "words" } } } } }]]):format(unpack(formats)))
      cbk.config.save(cbk.dict { width = 2, words = 3 }, dir .. "/config.json")
      for differ, count in pairs { [false] = 0, [true] = 1 } do
        local root = cbk.dict { e = cbk.full({ 3, 2 }, 1), head = cbk.full({ 3, 2 }, differ and 2 or 1) }
        cbk.create(dir .. "/m.safetensors", { root = root, overwrite = true }):commit { progress = false }
        local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--src-fmt", formats[1], "--to", formats[2], "--converter",
          "own.lua", "--overwrite", "--config", "config.json")
        equal({ code, select(2, err:gsub("'e' differs from 'head', though the config ties them", "")) }, { 0, count }, err)
      end
    end
  end)

  it("name what the written layout's class does not have, and a side without a class", function()
    local _, _, stderr = run(own("make 'Right'", "fff"), 2, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config",
      "config.json", "m.safetensors", "-o", "out")
    has(stderr, "the output lacks 2 weights that its model needs: layers.{0,1}.ff.weight")
    has(stderr, "the output has 2 tensors that Right does not have")
    _, _, stderr = run(own("nil", "ff"), 2, "convert", "--converter", "own.lua", "--src-fmt", "a", "--to", "b", "--config",
      "config.json", "m.safetensors", "-o", "out")
    has(stderr, "no class describes 'own' in b: completeness and shapes of its checkpoint")
  end)
end)

describe("Between a layout of one's own and a release", function()
  local tiny = require "tiny"
  local conversion = require "conversion"

  ---GPT-2's model of the Model Zoo, with a table that copies names, for a format.
  local function zoo_folder(format)
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", ([[
      local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
      local zoo = require "converters.classes.zoo.decoder"
      return { { model = "own", name = "own", classes = { right = zoo.GPT2LMHeadModel },
        { %q, "cs-2.0 .. cs-2.9", mup = "gpt", keys = rules.keys { { "*", "*" } }, config = fields.config { { "*" } } } } }]])
      :format(format))
    local cs_config, cs = conversion.run("gpt2", "hf", "cs-2.9", config, root)
    return dir, cs_config, cs
  end

  ---What a conversion makes; nil and the error if it fails.
  local function run(format, file, to, change)
    local dir, config, root = zoo_folder(format)
    if change then change(config, root) end
    local is_release = file == "m.mdl"
    cbk.create(dir .. "/m.mdl", { root = root, h5_version = "0.5" }):commit { progress = false }
    cbk.create(dir .. "/m.safetensors", { root = root.model }):commit { progress = false }
    cbk.config.save(is_release and config or config.model, dir .. (is_release and "/p.yaml" or "/p.json"))
    local code, _, err = harness.cbk(dir, "convert", file, "--converter", "own.lua", "--model", "own", "--src-fmt",
      is_release and "cs-2.9" or format, "--to", to == "own" and format or to, "--config", is_release and "p.yaml" or "p.json", "-o", "out",
      "--export-safetensors", "--single-file")
    if code ~= 0 then return nil, err end
    for _, name in ipairs(cbk.fs.list(dir .. "/out")) do
      if not name:find "%.json$" and not name:find "%.yaml$" then return cbk.open(dir .. "/out/" .. name).root, err, dir end
    end
  end

  it("muP is folded, and NaN of sideband sparsity is zero, as towards Hugging Face", function()
    for what, change in pairs {
      mup = function(config)
        local model = config.model
        model.mup_base_hidden_size, model.mup_base_filter_size, model.output_logits_alpha = 4, 8, 2
      end,
      sideband = function(config, root)
        config.sparsity = cbk.dict { type = "sideband" }
        local key = cbk.keys(root.model)[1]
        root.model[key] = cbk.full(root.model[key]:shape(), 0 / 0)
      end,
    } do
      local hf, own = assert(run("hf", "m.mdl", "own", change)), assert(run("a", "m.mdl", "own", change))
      local plain = assert(run("a", "m.mdl", "own"))
      local changed = 0
      for key, t in cbk.tensors(hf) do
        is_true(own[key]:compare(t).same_bits, what .. " " .. key)
        changed = changed + (own[key]:compare(plain[key]).same_bits and 0 or 1)
      end
      is_true(changed > 0, what)
    end
  end)

  it("a release gets the name of the model, and what it cannot express is refused", function()
    local _, err, dir = run("a", "m.safetensors", "cs-2.9", function(config) config.model.name = nil end)
    equal(cbk.config.load(dir .. "/out/p_to_cs-2.9.yaml").model.name, "own", err)
    local made
    made, err = run("a", "m.safetensors", "cs-2.0", function(config) config.model.rope_theta = 500000 end)
    equal(made, nil)
    has(err, "rope_theta=500000: only 10000, before release 2.1")
  end)
end)

describe("GPT-2's n_ctx", function()
  it("is no other name of n_positions, as in its class", function()
    local class = require "converters.classes.hf.gpt2".GPT2LMHeadModel
    equal(class:by_name().n_ctx == class:by_name().n_positions, false)
  end)
end)

describe("Mistakes in a class of one's own", function()
  ---What converting says when one text of the converter is another.
  local function said(from, to, right)
    local dir = folder(right or "make 'Right'", "ff")
    local first, last = TABLE:find(from, 1, true)
    is_true(first, from)
    local changed = TABLE:sub(1, first - 1) .. to:gsub("%%", "%%%%") .. TABLE:sub(last + 1)
    cbk.fs.write(dir .. "/own.lua", changed:format(right or "make 'Right'", "ff"), { overwrite = true })
    return select(2, convert(dir, 2))
  end

  it("are named with the converter's line", function()
    has(said("size()", "size"), "class Left: the field 'hidden_size' must be made by one of class.kinds, such as size(768), not a "
      .. "function\n")
    has(said("size()", "size 'a'"), "class Left: the default of the field 'hidden_size' must be a whole number of at least 1, not 'a'")
    has(said("size()", "size(4, 5)"), "class Left: argument 2 of the field 'hidden_size' must be a further name of it, not 5\n")
    has(said("= size(), num", "= size(4, 'n'), width = size(4, 'n'), num"), "class Left: 'n' is a name of the fields 'hidden_size' and "
      .. "'width'\n")
    has(said('makers "size depth"', 'makers "size dept"'), "cbk: own.lua:4: there is no kind of fields 'dept'; there are any, bias, ")
    has(said("tensors = ", "tensor = "), "class Left: a class has no 'tensor'; did you mean 'tensors'?")
    has(said("tensors = ", "tensors = 1, derived = "), "class Left: 'tensors' must be a function")
    has(said("tensors = ", "histories = {}, tensors = "), "class Left: a class has no 'histories'; did you mean 'history'?")
    has(said("return { {", "return {"), "cbk: cannot read the converter: own.lua:")
    has(said("keys = ", "key = "), "a converter has no 'key'; did you mean 'keys'?")
  end)

  it("are extents with the name of no field", function()
    has(said('"hidden_size", "hidden_size", false', '"hidden_size", "2 * hidden_siz", false'), "class Left: 'layers.0.ff.weight' has the "
      .. "extent '2 * hidden_siz', but 'hidden_siz' is not one of its fields; did you mean 'hidden_size'?")
    has(said('"layers", "num_hidden_layers"', '"layers", "num_layers"'), "class Left: 'layers' has the extent 'num_layers'")
  end)

  it("are fields that the class of the Model Zoo does not have, and defaults that ask for biases", function()
    local keys = ('{ "layers.N.ff.weight", "layers.N.%s.weight" }')
    local right = "require 'converters.classes.zoo.decoder'.GPT2LMHeadModel"
    local text = said('{ "num_hidden_layers" }', '{ "num_hidden_layers" }, fields.fixed.right { norm_typ = "rmsnorm" }', right)
    has(text, "warning: the config rule fixed 'norm_typ' writes a field that GPT2LMHeadModel does not have; did you mean 'norm_type'?")
    has(said(keys, '{ "layers.N.ff.weight", "transformer_decoder.layers.N.self_attn.proj_q_dense_layer.weight" }', right),
      "the output's config does not say use_projection_bias_in_attention, whose default means 6 biases that the output lacks: ")
  end)

  it("are tensors that the output's config ties, though they differ", function()
    local ties = [[{ { "head", { "hidden_size", "hidden_size" }, tied = name == "Right" and "embed" or nil },
      { "embed", { "hidden_size", "hidden_size" } },]]
    local dir = folder("make 'Right'", "ff")
    local text = cbk.fs.read(dir .. "/own.lua"):gsub("return { class.each", "return " .. ties:gsub("%%", "%%%%") .. " class.each")
    text = text:gsub("rules.keys {", '%0 { "embed" }, { "head" },')
    cbk.fs.write(dir .. "/own.lua", text, { overwrite = true })
    local function write(head)
      local root = cbk.dict { embed = cbk.full({ 4, 4 }, 2), head = cbk.full({ 4, 4 }, head) }
      for i = 0, 1 do root[("layers.%d.ff.weight"):format(i)] = cbk.full({ 4, 4 }, 1) end
      cbk.create(dir .. "/m.safetensors", { root = root, overwrite = true }):commit { progress = false }
    end
    write(3)
    local code, stderr = convert(dir, 2)
    equal(code, 0, stderr)
    has(stderr, "warning: in the output, 'embed' differs from 'head', though the config ties them; set the field that ties them with a "
      .. "pair or with fields.fixed.right\n")
    cbk.fs.remove(dir .. "/m_to_cs-2.4.mdl")
    cbk.fs.remove(dir .. "/config_to_cs-2.4.yaml")
    write(2)
    equal({ convert(dir, 2) }, { 0, "" })
  end)

  it("are misspelt functions, options of tensors and ties", function()
    has(said("class.linear", "class.liner"), "cbk: own.lua:9: there is no function 'class.liner'; did you mean 'class.linear'?\n")
    local own = '{ { "a.weight", { "hidden_size" }, %s }, class.each('
    has(said("{ class.each(", own:format "tide = 'b'"), "class Left: the tensor 'a.weight' has no option 'tide'; did you mean 'tied'?")
    has(said("{ class.each(", own:format "tied = 'b'"), "class Left: 'a.weight' is tied to 'b', which is not one of its tensors")
    has(said("{ class.each(", own:format "tied = 'a.weight'"), "class Left: 'a.weight' is tied to 'a.weight', and that leads back to it; "
      .. "one of the names must not be tied")
  end)

  it("are fields that no rule names, and rules without a side", function()
    has(said('{ { "hidden_size" }, ', "{ "), "only null is supported; no rule of 'own.lua' names this field, so it must have its default: "
      .. "add a rule for it\n")
    has(said("fields.fixed.left {", "fields.fixed {"), "cbk: own.lua:16: fields.fixed needs a side: fields.fixed.left { … } or "
      .. "fields.fixed.right { … }\n")
  end)

  it("are keys without a rule, which are not those of another model", function()
    local text = said('"layers.N.ff.weight"', '"layers.N.f.weight"')
    has(text, "cbk: 2 keys were not matched: layers.{0,1}.ff.weight; add rules for them to 'own.lua'\n")
  end)
end)

describe("Keys without a rule", function()
  ---What converting a LLaMA says, whose keys have other names or which has one more.
  local function said(change)
    local dir, root = harness.temp_dir(), cbk.dict()
    local config = cbk.dict { { "model_type", "llama" }, { "vocab_size", 8 }, { "hidden_size", 8 }, { "num_attention_heads", 2 },
      { "num_hidden_layers", 1 }, { "intermediate_size", 16 } }
    for key, tensor in cbk.items(require("cbk.classes").new(config, "llama", "hf")) do root[change[key] or key] = tensor end
    for key, value in pairs(change) do if value == true then root[key] = cbk.full({ 2 }, 0) end end
    cbk.create(dir .. "/m.safetensors", { root = root }):commit { progress = false }
    cbk.config.save(config, dir .. "/config.json")
    return select(3, harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.4"))
  end

  it("may be left out where nothing is missing", function()
    has(said { scale = true }, "1 key was not matched: scale; to leave it out, if the model works without it, add --drop-unmatched-keys\n")
  end)

  it("are to be renamed where weights are missing", function()
    has(said { ["model.norm.weight"] = "model.last.weight" }, "1 key was not matched: model.last.weight; 1 weight is missing: "
      .. "model.norm.weight; if they have other names here, rename them with `cbk copy --rename`\n")
  end)
end)

describe("The one model of a converter's file", function()
  ---The table without classes.
  local function poor()
    local dir = folder("nil", "ff")
    local text = cbk.fs.read(dir .. "/own.lua"):gsub("classes = %b{},", "")
    cbk.fs.write(dir .. "/own.lua", text, { overwrite = true })
    cbk.config.save(cbk.dict { model_type = "own", hidden_size = 4, num_hidden_layers = 2 }, dir .. "/config.json")
    return dir, text
  end
  local function runs(dir, ...)
    local code, stdout, stderr = harness.cbk(dir, ...)
    equal(code, 0, stderr)
    return stdout
  end

  it("is used without --model, there and back", function()
    local dir = poor()
    has(runs(dir, "identify", "m.safetensors", "--converter", "own.lua"), "all keys fit rules of own in 'own.lua', which has no class")
    has(runs(dir, "convert", ".", "--to", "cs-2.4", "--converter", "own.lua", "-o", "there"), "Found: --model own --src-fmt hf --config ")
    local made = "there/" .. cbk.fs.basename(dir) .. "_to_cs-2.4.mdl"
    runs(dir, "convert", made, "--to", "hf", "--converter", "own.lua", "-o", "back", "--single-file", "--export-safetensors")
    runs(dir, "diff", "m.safetensors", "back/" .. cbk.fs.basename(dir) .. "_to_cs-2.4_to_hf")
  end)

  it("is not used where the file has several", function()
    local dir, text = poor()
    cbk.fs.write(dir .. "/own.lua", (text:gsub("return { {", "local one = { {"):gsub("%s*$", "\n")
      .. "local other = {}\nfor k, v in pairs(one[1]) do other[k] = v end\nother.model = 'other'\nreturn { one[1], other }\n"),
      { overwrite = true })
    local code, _, stderr = harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.4", "--converter", "own.lua")
    equal(code, 2)
    has(stderr, "cannot detect the model of 'm.safetensors'")
  end)
end)
