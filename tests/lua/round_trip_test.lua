-- `cbk rules --round-trip`: what tables and actions lose on the way there and back, with the given weights and with other sizes.

local cbk = require "cbk"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local round_trip = require "cbk.round_trip"
local report = require "cbk.round_trip.report"
local tables = require "converters.authoring.tables"
local tiny = require "tiny"
local variants = require "cbk.round_trip.variants"
local warnings = require "cbk.warnings"

local describe, it, equal = harness.describe, harness.it, harness.equal

local HEAD = [[
local actions = require "converters.vocabulary.actions"
local cbk = require "cbk"
local fields = require "converters.engine.fields"
local layouts = require "converters.vocabulary.layouts"
local rules = require "converters.engine.rules"
]]

---A folder with own.lua, a table between layouts "a" and "b", and m.pt.
---@param entries string   key rules
---@param tensors table
---@param config? string   config rules; without them, the table needs no config
local function folder(entries, tensors, config)
  local dir = harness.temp_dir()
  cbk.fs.write(dir .. "/own.lua", HEAD .. ([[
return { { model = "mine", { "a", "b", keys = rules.keys { %s }, %s } } }]])
    :format(entries, config and "config = fields.config { " .. config .. " }" or ""))
  cbk.create(dir .. "/m.pt", { root = cbk.dict(tensors) }):commit { progress = false }
  return dir
end

---Runs the command; its status and its output.
local function run(dir, ...) return harness.cbk(dir, "rules", "own.lua", ...) end

local function has(out, ...)
  harness.checked()
  for _, part in ipairs { ... } do
    if not out:find(part, 1, true) then error(("'%s' does not say '%s'"):format(out, part), 2) end
  end
end

local function counted(...) return conversion.counted({ ... }, 0) end

describe("Round trips: what a table loses", function()
  it("nothing, by a right one", function()
    local dir = folder([[{ "h.N.w", "layers.N.w", actions.transpose }, { "e", { "e1", "e2" }, actions.split(2) }, { "b" }]],
      { { "h.0.w", counted(4, 6) }, { "h.1.w", counted(4, 6) }, { "e", counted(8, 2) }, { "b", counted(3):to "float16" } })
    local code, out = run(dir, "m.pt", "--round-trip")
    equal(code, 0, out)
    has(out, "mine, a to b and back, the given weights: 4 of 4 tensors bit for bit\n", "extents times 2: 4 of 4 tensors bit for bit\n",
      "extents times 3: 4 of 4", "clean")
    has(select(2, run(dir, "m.pt")), "clean")
    assert(not select(2, run(dir, "m.pt")):find("bit for bit", 1, true), "only where it is asked for")
  end)

  it("rows that an action drops, also where the given checkpoint has none of them", function()
    local first = [[{ "h.N.w", "layers.N.w", actions.pair("first four", function(t) return t:slice(0, 0, 4) end,
      function(t) return t end) }]]
    local code, out = run(folder(first, { { "h.0.w", counted(6, 2) }, { "h.1.w", counted(6, 2) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "own.lua:6: round trip: 'h.{0,1}.w' comes back with the shape [4, 2], not [6, 2] ('h.N.w <-> layers.N.w', "
      .. "action 'first four'); with the given weights\n", "1 finding\n")
    code, out = run(folder(first, { { "h.0.w", counted(4, 2) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "the given weights: 1 of 1 tensor bit for bit\n", "'h.0.w' comes back with the shape [4, 4], not [8, 4]",
      "with random weights, extents times 2\n")
  end)

  it("the order of elements, by an action that is transposed in one direction only", function()
    local one_way = [[{ "w", "v", actions.pair("turn", function(t) return t:transpose(0, 1) end, function(t) return t end) }]]
    local code, out = run(folder(one_way, { { "w", counted(2, 3) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "'w' comes back with the shape [3, 2], not [2, 3] ('w <-> v', action 'turn')")
    code, out = run(folder(one_way, { { "w", counted(2, 2) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "'w' comes back with 2 of 4 elements changed, the first at [0, 1] ('w <-> v', action 'turn'); with the given weights")
  end)

  it("one of two tensors that become one", function()
    local joined = [[{ { "x", "y" }, "z", actions.pair("join", function(parts) return parts[1] end, function(t) return { t, t } end) }]]
    local code, out = run(folder(joined, { { "x", counted(4) }, { "y", conversion.counted({ 4 }, 9) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "'y' comes back with 4 of 4 elements changed, the first at [0] ('{ x, y } <-> z', action 'join')",
      "1 of 2 tensors bit for bit")
    code, out = run(folder([[{ "x", "z" }, { "y", "z" }]], { { "x", counted(4) }, { "y", counted(4) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "`cbk convert` refuses this: 1 target key has two sources")
  end)

  it("a dtype, and what ties two names", function()
    local code, out = run(folder([[{ "w", "v", actions.pair("half", function(t) return t:to "float16" end, function(t) return t end) }]],
      { { "w", counted(2, 3) } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "'w' comes back as float16, not float32 ('w <-> v', action 'half')")
    local tied = counted(2, 3)
    code, out = run(folder([[{ "w" }, { "u", "v", actions.pair("more", function(t) return t * 2 end, function(t) return t / 2 end) }]],
      { { "w", tied }, { "u", tied } }), "m.pt", "--round-trip")
    equal(code, 1, out)
    has(out, "'u' comes back as a tensor of its own: it was one with 'w' ('u <-> v', action 'more')")
    code, out = run(folder([[{ "w" }, { "u", "v" }]], { { "w", tied }, { "u", tied } }), "m.pt", "--round-trip")
    equal(code, 0, out)
  end)

  it("a key, but not one that a rule leaves out for a reason", function()
    local code, out = run(folder([[{ "w" }, rules.only.left("mask", "the other side computes it")]],
      { { "w", counted(2) }, { "mask", counted(2) } }), "m.pt", "--round-trip")
    equal(code, 0, out)
    has(out, "the given weights: 1 of 2 tensors bit for bit; 1 left out for a reason\n")
  end)

  it("fields of the config", function()
    local half = [[{ "width", "hidden", { forward = function(n) return n - n % 4 end, backward = function(n) return n end } }]]
    local dir = folder([[{ "w" }]], { { "w", counted(6, 2) } }, half .. [[, fields.drop.left { "seed" }, { "kind" }]])
    cbk.config.save(cbk.dict { width = 6, note = "x", kind = "k", seed = 3 }, dir .. "/config.json")
    local code, out = run(dir, "m.pt", "--round-trip", "--config", "config.json")
    equal(code, 1, out)
    has(out, "round trip: 'width' of the config comes back as 4, not 6; with the given weights",
      "'note' of the config does not come back: it was 'x'")
    assert(not out:find("'kind'", 1, true) and not out:find("'seed' of", 1, true), out)
  end)

  it("prints at most 20 lines", function()
    local entries, tensors = {}, {}
    for i = 1, 26 do
      local name = ("w%s"):format(string.char(96 + i))
      entries[i] = ([[{ "%s", "%s2", actions.pair("turn", function(t) return t:transpose(0, 1) end, function(t) return t end) }]])
        :format(name, name)
      tensors[i] = { name, counted(2, 3) }
    end
    local code, out = run(folder(table.concat(entries, ", "), tensors), "m.pt", "--round-trip")
    equal({ code, select(2, out:gsub("comes back", "")) }, { 1, 20 }, out)
    has(out, "6 changes more")
  end)
end)

describe("Round trips: other sizes", function()
  local CLASS = [[
local class = require "converters.engine.class"
local size, depth = class.makers "size depth"
local Own = class.new "Own" {
  fields = { width = size(8), depth = depth(1), heads = size(2), words = size(10) },
  tensors = function()
    return { { "embed", { "words", "width" } }, class.each("h", "depth", { { "qkv", { "3 * width", "width" } } }) }
  end,
}
]]

  local function write(action)
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", HEAD .. CLASS .. ([[
return { { model = "mine", classes = { left = Own }, { "a", "b",
  keys = rules.keys { { "embed" }, { "h.N.qkv", { "h.N.q", "h.N.k", "h.N.v" }, %s } },
  config = fields.config { { "width" }, { "depth" }, { "heads" }, { "words" } } } } }]]):format(action))
    return dir
  end

  it("from a class, without a checkpoint and with one", function()
    local dir = write "actions.split(3)"
    local code, out = run(dir, "--round-trip")
    equal(code, 0, out)
    has(out, "mine, a to b and back, random weights, ", "width=32", "heads=4", "width=96", "heads=6",
      "4 of 4 tensors bit for bit", "clean")
    local fixed = write [[actions.pair("rows", function(t) return { t:slice(0, 0, 8), t:slice(0, 8, 16), t:slice(0, 16, 24) } end,
      function(parts) return cbk.cat(parts, 0) end)]]
    cbk.create(fixed .. "/m.pt", { root = cbk.dict { { "embed", counted(10, 8) }, { "h.0.qkv", counted(24, 8) } } }):commit()
    cbk.config.save(cbk.dict { width = 8, depth = 1, heads = 2, words = 10 }, fixed .. "/config.json")
    code, out = run(fixed, "m.pt", "--config", "config.json", "--round-trip")
    equal(code, 1, out)
    has(out, "the given weights: 2 of 2 tensors bit for bit",
      "random weights, depth=3, heads=4, width=32, words=211: the config contradicts",
      "such as 'h.0.qkv': expected [96, 32] (width=32), found [24, 32]", "own.lua:15: round trip: ",
      "('h.N.qkv <-> { h.N.q, h.N.k, h.N.v }', action 'rows')", "1 finding\n")
    equal((run(fixed, "--config", "config.json", "--round-trip")), 1)
  end)

  it("are in the sandbox, and in --json", function()
    local dir = write [[actions.pair("read", function(t) return { io.open("/etc/passwd"), t, t } end, function(parts) return parts[1] end)]]
    local code, out = run(dir, "--round-trip")
    equal(code, 1, out)
    has(out, "cannot convert key 'h.0.qkv' (float32 [96, 32]) with 'read': own.lua:15: a sandboxed converter has no 'io'")
    local status, text = run(write "actions.split(3)", "--round-trip", "--json")
    local found = cbk.config.parse(text, "json").round_trips
    equal({ status, #found, found[1].tensors, found[1].same, found[1].changed }, { 0, 3, 4, 4, 0 })
  end)

  it("fit each other", function()
    local config = cbk.dict { hidden_size = 64, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 16, intermediate_size = 256,
      num_hidden_layers = 4, vocab_size = 1000, type_vocab_size = 2, rotary_dim = 4, partial_rotary_factor = 1,
      layer_types = cbk.list { "a", "b", "a", "b" }, max_position_embeddings = 512 }
    local list = variants.of(config, nil, function(own) return own end)
    equal(#list, 3)
    local one = list[1].config
    equal(cbk.totable(one), { hidden_size = 40, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, intermediate_size = 160,
      num_hidden_layers = 3, vocab_size = 211, type_vocab_size = 2, rotary_dim = 2, partial_rotary_factor = 1,
      layer_types = { "a", "b", "a" }, max_position_embeddings = 24 })
    local kept = variants.of(config, nil, function(own) return own.vocab_size == 1000 and own or nil, "vocab_size must be 1000" end)
    equal({ #kept, kept[1].config.vocab_size, kept[1].config.hidden_size }, { 3, 1000, 40 })
    local none, why = variants.of(config, nil, function() return nil, "no" end)
    equal({ #none, why }, { 0, "no" })
  end)

  it("that are rounded by a sum are counted, and parts are named", function()
    local dir = harness.temp_dir()
    local code, out = harness.cbk(dir, "rules", "gemma2", "--round-trip")
    equal(code, 0, out)
    has(out, "23 of 36 tensors bit for bit; 13 rounded", "clean")
    code, out = harness.cbk(dir, "rules", "dpr", "--round-trip")
    equal(code, 1, out)
    has(out, "dpr: not tried with random weights: the model has several parts, or is inside another one; name a checkpoint",
      "dpr: round trip: nothing was converted there and back: the model has several parts", "1 finding\n")
  end)

  it("of a composite are its extents", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.composite "dpr")
    for _, part in ipairs(cbk.keys(config)) do
      cbk.fs.mkdir(dir .. "/dpr/" .. part)
      cbk.config.save(config[part], dir .. "/dpr/" .. part .. "/config.json")
      cbk.create(dir .. "/dpr/" .. part .. "/model.safetensors", { root = root[part] }):commit()
    end
    local code, out = harness.cbk(dir, "rules", "dpr", "dpr", "--config", "dpr", "--round-trip")
    equal(code, 0, out)
    has(out, "the given weights: 42 of 42 tensors bit for bit", "extents times 2: 42 of 42", "extents times 3: 42 of 42")
  end)

  it("are not tried with more elements than can be compared", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", HEAD .. CLASS:gsub("words = size%(10%)", "words = size(10), rest = size(4e8)")
      :gsub('"width" } }, class', '"width" } }, { "rest", { "rest" } }, class') .. [[
return { { model = "mine", classes = { left = Own }, { "a", "b", keys = rules.keys { { "*" } },
  config = fields.config { { "width" }, { "depth" }, { "heads" }, { "words" }, { "rest" } } } } }]])
    local code, out = run(dir, "--round-trip")
    equal(code, 1, out)
    has(out, "not tried with random weights: the model takes no other sizes: 4e+08 elements are more than the 67108864 that are tried")
  end)

  it("names what is wrong with the command line", function()
    local dir = write "actions.split(3)"
    for part, words in pairs {
      ["--config needs --keys, a checkpoint or --round-trip"] = { "--config", "config.json" },
      ["--round-trip needs tensors: name the checkpoint instead of --keys"] = { "--keys", "keys.txt", "--round-trip" },
      ["--logits needs tensors: name the checkpoint instead of --keys"] = { "--keys", "keys.txt", "--logits" },
    } do
      local code, _, err = run(dir, unpack(words))
      equal(code, 2)
      has(err, part)
    end
  end)

  it("the bundled models are clean", function()
    local config, root = tiny.model(tiny.newest_ways().llama)
    local dir = harness.temp_dir()
    cbk.config.save(config, dir .. "/config.json")
    cbk.create(dir .. "/m.safetensors", { root = root }):commit()
    for _, words in ipairs { {}, { "m.safetensors" } } do
      words[#words + 1] = "--round-trip"
      local code, out = harness.cbk(dir, "rules", "llama", "--config", "config.json", unpack(words))
      equal(code, 0, out)
      has(out, "hf to cs-2.9 and back, random weights, ", "cs-2.9 to hf and back, random weights, ", "bit for bit", "clean")
    end
  end)

  for _, name in ipairs(converters.catalogue.names()) do
    local model = converters.catalogue.find(name)
    if model.model == name then
      it("are those that come back through " .. name, function()
        local way, reports = tiny.newest_ways()[name], nil
        local _, list = pcall(tables.of, { model }, name)
        local fine, problem = warnings.quietly(function()
          local config = way and not way.converter.wrap and tiny.config(name, way.converter) or nil
          reports = round_trip.of_tables(list, config)
        end)
        assert(fine, problem)
        local found = report.findings(reports, name, false)[1]
        equal(found and not found.text:find "^nothing was converted there and back: the model has several parts" and found.text or nil, nil)
      end)
    end
  end
end)

