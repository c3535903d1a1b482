-- `cbk convert --dry-run` and `--explain`: the plan key by key, which rule took a key and why no other; what the tutorials show.

local cbk = require "cbk"
local class = require "converters.engine.class"
local converters = require "cbk.converters"
local harness = require "harness"
local conversion = require "conversion"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local explain = require "converters.authoring.explain"
local dry_run = require "converters.authoring.dry_run"
local advice = require "cbk.recognise.advice"
local huge_models = require "huge_models"
local tiny = require "tiny"

local convert = converters.convert
local describe, it, equal = harness.describe, harness.it, harness.equal
local counted = conversion.counted

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

---Plans a conversion by tables that are made here.
---@return Watch watch, boolean fine, any problem
local function planned(path, source, options)
  local job = { model = { model = "made" }, zoo_name = "made", path = path, seed = 0 }
  for name, value in pairs(options or {}) do job[name] = value end
  convert.config(job, cbk.dict { a = 1 })
  local watch = dry_run.watch(job)
  job.trace = watch.trace
  local fine, problem = pcall(convert.checkpoint, job, cbk.dict(source))
  return watch, fine, problem
end

local function hf(table)
  table.config = fields.config { { "*" } }
  return { { converter = table, side = "left", src = "hf", tgt = "cs-2.4" } }
end

local function lines(watch)
  local out = {}
  for i, row in ipairs(dry_run.rows(watch)) do out[i] = dry_run.line(row) end
  table.sort(out)
  return out
end

local function has(text, part)
  harness.checked()
  if type(text) == "table" then text = table.concat(text, "\n") end
  if not text:find(part, 1, true) then error(("no %q in\n%s"):format(part, text), 2) end
end

describe("Plan: key by key", function()
  local t = counted({ 4, 2 }, 0)

  it("a vector is copied by a rule that transposes matrices", function()
    local watch, fine = planned(hf { keys = rules.keys { { "{a,b}", "c.{a,b}", actions.transpose } } },
      { { "a", t }, { "b", counted({ 4 }, 0) } })
    equal(fine, true)
    equal(lines(watch), { "a -> c.a  transpose  float32 [4, 2] -> float32 [2, 4]", "b -> c.b  copy  float32 [4]" })
  end)

  it("each kind of rule", function()
    local watch, fine = planned(hf {
      keys = rules.keys {
        { "a", { "q", "k" }, actions.split(2) }, { "b", "c", actions.transpose, also_right = "c2" },
        rules.drop.left("gone", "no place"), rules.only.left("freq", "computed"), { "copy", "copied" },
      },
      fill = { right = { { "new", function() return counted({ 1 }, 0) end } } },
    }, { a = t, b = t, gone = t, freq = t, copy = t })
    assert(fine)
    equal(lines(watch), {
      "(made here) -> new  made  float32 [1]",
      "a -> k  split  float32 [4, 2] -> float32 [2, 2]", "a -> q  split  float32 [4, 2] -> float32 [2, 2]",
      "b -> c  transpose  float32 [4, 2] -> float32 [2, 4]", "b -> c2  transpose  float32 [4, 2] -> float32 [2, 4]",
      "copy -> copied  copy  float32 [4, 2]",
      "freq -> (nothing: computed)  float32 [4, 2]", "gone -> (nothing: no place)  float32 [4, 2]",
    })
    equal(dry_run.summary(dry_run.rows(watch)), "keys read: 5; keys written: 6 (split 2, transpose 2, copy 1); made here: 1; left out: 2")
  end)

  it("like layers are one line, and so are their explanations", function()
    local source = { ["h.0.b"] = t }
    for i = 0, 11 do source[("h.%d.a"):format(i)] = t end
    local watch = planned(hf { keys = rules.keys { { "h.N.a", "layers.N.w", actions.transpose }, { "h.N.b", "x.N" } } }, source)
    local folded = dry_run.folded(dry_run.rows(watch))
    table.sort(folded)
    equal(folded, { "h.0.b -> x.0  copy  float32 [4, 2]",
      "h.{0..11}.a -> layers.{0..11}.w  transpose  float32 [4, 2] -> float32 [2, 4]  12 ×" })
    local explained, count = explain.lines(watch, "h.*.a")
    equal({ count, explained[1], explained[#explained] }, { 12, "h.0.a", "  11 more like it: h.{1..11}.a" })
  end)

  it("what is made beside a tensor is not called what its rule does", function()
    local watch = planned(hf { keys = rules.keys {
      { "a", { "q", "k" }, actions.split(2), also_right = { { "mask", function() return counted({ 3 }, 0) end } } },
    } }, { a = t })
    has(lines(watch), "(made here) -> mask  made  float32 [3]")
    equal(dry_run.summary(dry_run.rows(watch)), "keys read: 1; keys written: 3 (split 2); made here: 1")
  end)

  it("values that are no tensors", function()
    local watch, fine = planned(hf { keys = rules.keys { { "*", "*" } } }, { n = 7, s = "text", l = cbk.list { 1, 2 }, none = cbk.null })
    assert(fine)
    equal(lines(watch), { "l -> l  copy  list", "n -> n  copy  int", "none -> none  copy  null", "s -> s  copy  str" })
  end)

  it("parts of one tensor", function()
    local watch = planned({ { converter = hf { keys = rules.keys { { "a", { "q", "k" }, actions.split(2) } } }[1].converter,
      side = "right", src = "hf", tgt = "hf" } }, { q = t, k = t })
    local found = lines(watch)
    has(found, "-> a  split  2 x float32 [4, 2] -> float32 [8, 2]")
    has(found, "-> a  split, together with others")
    has(explain.lines(watch, "a"), "    parts     q rows 0..3; k rows 4..7")
  end)

  it("where the parts of a joined tensor are", function()
    local function parts(from, to, action, given)
      local watch = planned(hf { keys = rules.keys { { from, to, action } } }, { a = given or t })
      return table.concat((explain.lines(watch, "a")), "\n"):match "\n    parts     ([^\n]*)"
    end
    local columns = actions.pair("columns", function(x) return { x:slice(1, 0, 1), x:slice(1, 1, 2) } end,
      function(list) return cbk.cat(list, 1) end, { parts = 2 })
    local strided = actions.pair("strided", function(x)
      x = x:reshape { 4, 2, 1 }
      return { x:slice(1, 0, 1):reshape { 4 }, x:slice(1, 1, 2):reshape { 4 } }
    end, function(list) return cbk.cat({ list[1]:reshape { 4, 1 }, list[2]:reshape { 4, 1 } }, 1):reshape { 8 } end, { parts = 2 })
    equal(parts("a", { "h.up_proj.w", "h.gate_proj.w" }, actions.split(2)), "up rows 0..1; gate rows 2..3")
    equal(parts("a", { "h.w1.w", "h.w2.w" }, columns), "w1 columns 0..0; w2 columns 1..1")
    equal(parts("a", { "x", "y" }, strided, counted({ 8 }, 0)),
      "x elements 0..0, 2..2, … (4 ranges); y elements 1..1, 3..3, … (4 ranges)")
    equal(parts("a", "b", actions.transpose), nil)
    local unknown = actions.pair("unknown", function(x, at) return { x:slice(0, 0, at:source("a"):shape()[1] / 2), x:slice(0, 2, 4) } end,
      function(list) return cbk.cat(list, 0) end, { parts = 2 })
    equal(parts("a", { "x", "y" }, unknown), nil) -- it reads other tensors, which an explanation does not give it
  end)

  it("what does not fit is in the plan of a conversion that fails", function()
    local watch, fine, problem = planned(hf { keys = rules.keys { { "a", "b" } } }, { a = t, stranger = t })
    assert(not fine and problem.message:find("stranger", 1, true))
    has(lines(watch), "stranger -> (nothing: no rule fits)")
  end)

  it("another name of a tensor, from which it is read where its own is not there", function()
    local tied = class.new "Tied" { fields = {}, tensors = function()
      return { { "words", { 4, 2 } }, { "head", { 4, 2 }, tied = "words" } }
    end }
    local table = hf {
      keys = rules.keys { { "head", "out" }, { "words", "in", actions.transpose } }, classes = { left = tied },
    }
    local watch, fine = planned(table, { words = t }, { deduplicated = true })
    assert(fine)
    equal(lines(watch), { "words -> in  transpose  float32 [4, 2] -> float32 [2, 4]", "words -> out  tied  float32 [4, 2]" })
    equal(dry_run.summary(dry_run.rows(watch)), "keys read: 1; keys written: 2 (transpose 1, tied 1)")
    equal(lines((planned(table, { words = t }))), { "words -> in  transpose  float32 [4, 2] -> float32 [2, 4]" })
    has(explain.lines(watch, "out"), "for       head, which is missing: another name of the same tensor")
    has(explain.lines(watch, "out"), "does      tied: float32 [4, 2] -> float32 [4, 2]")
  end)

  it("the steps of a chain are one line", function()
    local one = rules.keys { { "a", "b", actions.transpose } }
    local two = rules.keys { { "b", "c" }, { "x", "y" } }
    local config = fields.config { { "*" } }
    local watch = planned({
      { converter = { keys = one, config = config }, side = "left", src = "hf", tgt = "cs-2.4" },
      { converter = { keys = two, config = config }, side = "left", src = "cs-2.4", tgt = "hf" },
    }, { a = t })
    equal(lines(watch), { "a -> c  transpose  float32 [4, 2] -> float32 [2, 4]" })
    local reported = explain.lines(watch, "c")
    has(reported, "hf -> cs-2.4: b")
    has(reported, "cs-2.4 -> hf: c")
  end)

  it("keys of a composite's parts say whose they are", function()
    local function part(name)
      return { left = name, right = name, keys = rules.keys { { "w", name .. ".w" } }, config = fields.config { { "*" } } }
    end
    local table = { components = { part "eye", part "ear" }, config = fields.config {} }
    local job = { model = { model = "made" }, path = { { converter = table, side = "left", src = "hf", tgt = "cs-2.4" } } }
    convert.config(job, cbk.dict { eye = cbk.dict { a = 1 }, ear = cbk.dict { a = 1 } })
    local watch = dry_run.watch(job)
    job.trace = watch.trace
    convert.checkpoint(job, cbk.dict { eye = cbk.dict { w = t }, ear = cbk.dict { w = t } })
    equal(lines(watch), { "ear/w -> ear.w  copy  float32 [4, 2]", "eye/w -> eye.w  copy  float32 [4, 2]" })
    has(explain.lines(watch, "eye/*"), "eye.w")
  end)
end)

describe("Plan: explanations", function()
  local t = counted({ 2 }, 0)
  local function never() return false end
  local watch = planned(hf {
    keys = rules.keys {
      { "h.N.attn.q", "never.N", when = never },
      { "h.N.attn.{q,k}", "layers.N.{q,k}" },
      { "h.N.attn.v", "layers.N.v" },
      { "h.N.mlp", "layers.N.ffn" },
      { "*", "rest.*" },
    },
  }, { ["h.7.attn.q"] = t, ["h.x.attn.q"] = t })

  it("which rule, with what, and why no other", function()
    local reported, count = explain.lines(watch, "h.7.*")
    equal(count, 1)
    local line = debug.getinfo(1, "l").currentline
    has(reported, "hf -> cs-2.4: layers.7.q")
    has(reported, "h.N.attn.{q,k} <-> layers.N.{q,k}")
    has(reported, "N = 7")
    has(reported, "copy: float32 [2] -> float32 [2]")
    has(reported, ("dry_run_test.lua:%d): fits, but its condition (%stests/lua/dry_run_test.lua:"):format(line - 11, here))
    has(reported, "fits too, but comes later")
    has(reported, "h.N.attn.v")
    has(reported, "part 4 is 'q', not 'v'")
  end)

  it("rules that a function made from one line are reported once", function()
    local function same(place) return { "h.N.mlp", place, when = never } end
    local made = planned(hf { keys = rules.keys { same "a.N", same "b.N", { "h.N.mlp", "c.N" }, { "h.N.{x,y}", "z.N.{x,y}" } } },
      { ["h.7.mlp"] = t })
    local lines_of = {}
    for _, line in ipairs((explain.lines(made, "h.7.mlp"))) do
      local text = line:gsub("^%s+not%s+", ""):gsub("^%s+", "")
      assert(not lines_of[text], text)
      lines_of[text] = true
    end
  end)

  it("keys of the other side, and globs", function()
    has(explain.lines(watch, "rest.*"), "* = h.x.attn.q")
    equal(select(2, explain.lines(watch, "*")), 2)
  end)

  it("a key that is not there", function()
    local reported, count = explain.lines(watch, "h.7.attn.w")
    equal(count, 0)
    has(reported, "is neither in the checkpoint nor in the output; the nearest keys are h.7.attn.q")
    has(reported, "as a key of hf: * <-> rest.*")
    has(reported, "as a key of cs-2.4: no rule fits")
  end)
end)

describe("Plan: advice on keys that fit no rule", function()
  local t = counted({ 2, 2 }, 0)
  local job = converters.job(converters.route("gpt2", "hf", "cs-2.4"))

  it("another model takes them all", function()
    local hub = { ["wte.weight"] = t, ["h.0.ln_1.weight"] = t, ["h.0.attn.c_attn.weight"] = t }
    has(advice.unmatched(job, cbk.dict(hub), {}), "--model btlm-headless or gpt2-headless or jais-headless")
    hub.stranger = t
    equal(advice.unmatched(job, cbk.dict(hub), {}), nil)
  end)

  ---What a BERT is reported that lacks some of its keys, or has them under other names.
  local function bert(f)
    local way = tiny.newest_ways()["bert-token-classifier"]
    local config, root = tiny.model(way)
    return f(way.format, config, root)
  end

  it("they fit with a prefix, which is named with what is missing even so", function()
    bert(function(format, config, root)
      local one, bare = converters.job(converters.route("bert", "hf", format)), cbk.dict()
      converters.convert.config(one, config)
      for key, tensor in cbk.items(root) do
        local name = key:match "^bert%.(.*)"
        if name then bare[name] = tensor end
      end
      local reported = advice.unmatched(one, bare, cbk.keys(bare))
      has(reported, "they fit with the prefix 'bert.': `cbk copy CHECKPOINT NEW --rename '*=bert.*'` (still missing: ")
      has(reported, "cls.predictions.transform.dense.weight")
    end)
  end)

  it("they fit with a prefix below 'model', where a Model Zoo checkpoint has them", function()
    local way = tiny.newest_ways().bert
    local config, there = conversion.run("bert", "hf", way.format, tiny.model(way))
    local one, bare = converters.job(converters.route("bert", way.format, "hf")), cbk.dict()
    converters.convert.config(one, config)
    for key, tensor in cbk.items(there.model) do
      local name = key:match "^bert_encoder%.(.*)"
      if name then bare[name] = tensor end
    end
    has(advice.unmatched(one, bare, cbk.keys(bare)), "--rename 'model.*=model.bert_encoder.*'`")
  end)

  it("another model needs no more than there is", function()
    bert(function(format, config, root)
      local one = converters.job(converters.route("bert-sequence-classifier", "hf", format))
      converters.convert.config(one, conversion.with(config, { problem_type = "single_label_classification" }))
      root["bert.pooler.dense.weight"], root["bert.pooler.dense.bias"] = nil, nil
      has(advice.lacking(one, root), "the checkpoint is complete for --model bert-token-classifier")
      root["bert.embeddings.word_embeddings.weight"] = nil
      equal(advice.lacking(one, root), nil)
    end)
  end)

  it("other ways leave them out", function()
    local key = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    local t5 = converters.job(converters.route("t5", "hf", "cs-1.9"))
    has(advice.unmatched(t5, cbk.dict { [key] = t }, { key }), "(not used by T5): pass --drop-unmatched-keys to do so here")
    equal(advice.unmatched(t5, cbk.dict { [key] = t, x = t }, { key, "x" }), nil)
  end)
end)

-- --- as a command

describe("Plan: the command", function()
  local convert_llama = { "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", "config.json",
    "model.safetensors" }
  local function run(dir, ...)
    local words = { unpack(convert_llama) }
    for _, word in ipairs { ... } do words[#words + 1] = word end
    return harness.cbk(dir, unpack(words))
  end

  it("experts of 8 x 22B are planned one by one, or stacked", function()
    local dir = harness.temp_dir()
    huge_models.write(dir, huge_models.mixtral_8x22b)
    for format, summary in pairs {
      ["cs-2.5"] = "keys read: 1739; keys written: 564 (copy 284, rotary q 56, rotary k 56, stacked experts 168)",
      ["cs-2.8"] = "keys read: 1739; keys written: 1740 (copy 1628, rotary q 56, rotary k 56)",
    } do
      local code, stdout = harness.cbk(dir, "convert", dir, "--to", format, "--dry-run")
      equal(code, 0)
      has(stdout, summary)
      has(stdout, "reads 261.9 GiB, writes at most 261.9 GiB")
      local blocks = tonumber(stdout:match "memory for blocks ([%d.]+) MiB")
      assert(blocks and blocks <= 64, stdout:match "memory for blocks[^\n]*")
    end
  end)

  it("a model of 70B is planned without its bytes", function()
    local dir = harness.temp_dir()
    huge_models.write(dir, huge_models.llama_70b)
    local code, stdout = run(dir, "--dry-run")
    equal(code, 0)
    has(stdout, "keys read: 723; keys written: 724 (copy 564, rotary q 80, rotary k 80)")
    has(stdout, "reads 128.5 GiB")
    equal(cbk.fs.list(dir), { "config.json", "model.safetensors" })
    code, stdout = run(dir, "--explain", "model.layers.3.self_attn.q_proj.weight")
    equal(code, 0)
    has(stdout, "(converters/shared/llama.lua:")
    has(stdout, "rotary q: bfloat16 [8192, 8192]")
    code, stdout = run(dir, "--dry-run", "--json")
    equal(code, 0)
    local tree = cbk.config.parse(stdout, "json")
    equal({ #tree.keys, tree.totals.actions["rotary k"], tree.bytes_read }, { 724, 80, 137953296384 })
    code, stdout = run(dir, "--explain", "model.layers.3.self_attn.q_proj.weight", "--explain", "lm_head.weight")
    equal(code, 0)
    assert(stdout:find "^model%.layers%.3%.self_attn%.q_proj%.weight\n")
    has(stdout, "\n\nlm_head.weight\n")
    code, stdout = run(dir, "--explain", "model.layers.3.self_attn.q_pro.weight")
    equal(code, 1)
    has(stdout, "the nearest keys are model.layers.3.self_attn.q_proj.weight")
  end)

  ---What the readme's commands find.
  local function prepare(dir, text)
    cbk.fs.write(dir .. "/tiny.lua", (text:match "```lua\n(.-)```"))
    cbk.fs.write(dir .. "/config.json", '{"model_type": "tiny", "width": 4, "depth": 1, "heads": 2}')
    local layer = "blocks.0."
    cbk.create(dir .. "/model.safetensors", { root = cbk.dict {
      ["embed.weight"] = counted({ 5, 4 }, 0), [layer .. "attn.qkv.weight"] = counted({ 12, 4 }, 0),
      [layer .. "attn.out.weight"] = counted({ 4, 4 }, 0), [layer .. "norm.weight"] = counted({ 4 }, 0),
      [layer .. "norm.bias"] = counted({ 4 }, 0),
    } }):commit()
  end

  it("--debug prints the dry run on stderr and converts", function()
    local dir = harness.temp_dir()
    prepare(dir, cbk.fs.read(here .. "converters/README.md"))
    local code, stdout, stderr = harness.cbk(dir, "convert", "--converter", "tiny.lua", "--model", "tiny", "--src-fmt", "hf",
      "--tgt-fmt", "cs-2.4", "--config", "config.json", "model.safetensors", "--debug")
    equal({ code, stdout }, { 0, "Checkpoint saved to ./model_to_cs-2.4.mdl\nConfig saved to ./config_to_cs-2.4.yaml\n" })
    has(stderr, "embed.weight -> embedding_layer.word_embeddings.weight  copy  float32 [5, 4]\n")
    has(stderr, "keys read: 5; keys written: 7 (transpose 1, stacked qkv 3, copy 3)\n")
  end)

  it("the tutorials show what happens", function()
    local dir, text = harness.temp_dir(), cbk.fs.read(here .. "converters/README.md")
    prepare(dir, text)
    local commands, about_actions = 0, cbk.fs.read(here .. "converters/ACTIONS.md")
    local shown = text:match "```console\n(.-)```" .. about_actions:match "```console\n(.-)```"
    for command, output in (shown .. "$ "):gmatch "cbk ([^\n]*)\n(.-)%f[$]" do
      local words = {}
      for word in command:gmatch "%S+" do words[#words + 1] = word:gsub("'", "") end
      local code, stdout = harness.cbk(dir, unpack(words))
      equal({ code, stdout }, { 0, output }, command)
      commands = commands + 1
    end
    equal(commands, 3)
    equal(cbk.fs.list(dir), { "config.json", "model.safetensors", "tiny.lua" })
  end)
end)
