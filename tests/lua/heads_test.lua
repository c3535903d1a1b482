-- Attention heads of configs of the Model Zoo and of Hugging Face, and actions between a layout of one's own and Hugging Face.

local actions = require "converters.vocabulary.actions"
local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local heads = require "converters.vocabulary.heads"

local describe, it, equal = harness.describe, harness.it, harness.equal
local fails = conversion.fails

describe("Heads: sizes of a config", function()
  ---Heads, key heads, the width of all heads, rows of a head, rotated rows.
  local function sizes(config)
    config = cbk.dict(config)
    return { heads.queries(config), heads.keys(config), (heads.width(config)), (heads.size(config)), heads.rotary(config) }
  end

  it("of the Model Zoo", function()
    equal(sizes { num_heads = 4, hidden_size = 32, rotary_dim = 6 }, { 4, 4, 32, 8, 6 })
    equal(sizes { num_heads = 4, hidden_size = 32, attention_inner_dim = 64, rotary_dim = 16, attention_module = "multiquery_attention",
      extra_attention_params = cbk.dict { num_kv_groups = 2 }, num_attention_heads = 7 }, { 4, 2, 64, 16, 16 })
    fails("the config has no 'num_heads'", heads.queries, cbk.dict { hidden_size = 32 })
    fails("the config has no 'rotary_dim'", heads.rotary, cbk.dict { num_heads = 4, hidden_size = 32 })
    fails("hidden_size 30 is not a multiple of num_heads 4", heads.size, cbk.dict { num_heads = 4, hidden_size = 30 })
  end)

  it("of Hugging Face", function()
    equal(sizes { num_attention_heads = 4, hidden_size = 32 }, { 4, 4, 32, 8, 8 })
    equal(sizes { num_attention_heads = 4, num_key_value_heads = cbk.null, head_dim = cbk.null, hidden_size = 32 }, { 4, 4, 32, 8, 8 })
    equal(sizes { num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16, hidden_size = 32, partial_rotary_factor = 0.25 },
      { 4, 2, 64, 16, 4 })
    equal(sizes { n_head = 2, n_embd = 32, rotary_dim = 8 }, { 2, 2, 32, 16, 8 })
    equal(sizes { n_heads = 2, d_model = 32, rope_parameters = cbk.dict { partial_rotary_factor = 0.5 } }, { 2, 2, 32, 16, 8 })
    fails("hidden_size 30 is not a multiple of num_attention_heads 4", heads.size, cbk.dict { num_attention_heads = 4, hidden_size = 30 })
    fails("num_key_value_heads=0", heads.keys, cbk.dict { num_attention_heads = 4, num_key_value_heads = 0 })
  end)
end)

describe("Heads: actions with Hugging Face on the right", function()
  local SIZE, WIDTH = 4, 8 -- of a head, and what the projections read
  local config = cbk.dict { num_attention_heads = 4, num_key_value_heads = 2, head_dim = SIZE, hidden_size = WIDTH }

  local q, k, v = conversion.counted({ 16, WIDTH }, 0), conversion.counted({ 8, WIDTH }, 1000), conversion.counted({ 8, WIDTH }, 2000)

  ---Rows of lists behind each other: of each entry, the rows of one head.
  local function rows_of(list)
    local out = {}
    for _, one in ipairs(list) do
      local rows = one[1]:tolist()
      for i = 1, SIZE do out[#out + 1] = rows[one[2] * SIZE + i] end
    end
    return out
  end
  local grouped = { { q, 0 }, { q, 1 }, { k, 0 }, { v, 0 }, { q, 2 }, { q, 3 }, { k, 1 }, { v, 1 } }
  local stacked = { { q, 0 }, { q, 1 }, { q, 2 }, { q, 3 }, { k, 0 }, { k, 1 }, { v, 0 }, { v, 1 } }

  ---Rows i and i + 2 of each head of 4 rows, as pairs.
  local function interleaved(t)
    local rows, out = t:tolist(), {}
    for head = 0, #rows / SIZE - 1 do
      for _, i in ipairs { 1, 3, 2, 4 } do out[#out + 1] = rows[head * SIZE + i] end
    end
    return out
  end

  local function tree(t) return t:tolist() end

  it("fused queries, keys and values, grouped and stacked", function()
    local at = { right = config, left = cbk.dict(), side = "left", key = "qkv" }
    for list, action in pairs { [grouped] = actions.qkv.grouped(heads.keys, { rotary = false }), [stacked] = actions.qkv.stacked } do
      local fused = cbk.tensor(rows_of(list), { dtype = "float32" })
      local made = action.forward(fused, at)
      equal({ tree(made[1]), tree(made[2]), tree(made[3]) }, { tree(q), tree(k), tree(v) }, action.name)
      equal(tree(action.backward({ q, k, v }, at)), rows_of(list), action.name)
    end
    local turned = actions.qkv.grouped(heads.keys).forward(cbk.tensor(rows_of(grouped), { dtype = "float32" }), at)
    equal({ tree(turned[1]), tree(turned[2]), tree(turned[3]) }, { interleaved(q), interleaved(k), tree(v) })
  end)

  it("rotary rows, by a share of the head", function()
    local at = { right = conversion.with(config, { partial_rotary_factor = 0.5 }), left = cbk.dict(), side = "left", key = "q" }
    equal(tree(actions.rotary.keys.forward(k, at)), tree(k)) -- 2 rows are one pair
    at.right = config
    equal(tree(actions.rotary.keys.forward(k, at)), interleaved(k))
    equal(tree(actions.rotary.queries.backward(actions.rotary.queries.forward(q, at), at)), tree(q))
  end)

  it("name Hugging Face's fields in what they refuse", function()
    local at = { right = config, left = cbk.dict(), side = "left", key = "q" }
    fails("expected 8 rows (2 heads of 4: head_dim * num_attention_heads 16 / num_attention_heads 4, num_key_value_heads 2), found 16",
      actions.rotary.keys.forward, q, at)
    fails("expected 8 inputs (hidden_size), found 3", actions.qkv.stacked.forward, conversion.counted({ 32, 3 }, 0), at)
  end)

  it("in a table of one's own, there and back", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
local actions = require "converters.vocabulary.actions"
local fields = require "converters.engine.fields"
local heads = require "converters.vocabulary.heads"
local rules = require "converters.engine.rules"
return { { model = "mine", { "a", "hf",
  keys = rules.keys { { "h.N.qkv", { "layers.N.q_proj.weight", "layers.N.k_proj.weight", "layers.N.v_proj.weight" },
    actions.qkv.grouped(heads.keys, { rotary = false }) } },
  config = fields.config { { "width", "hidden_size" }, { "heads", "num_attention_heads" }, { "kv", "num_key_value_heads" },
    { "size", "head_dim" }, fields.fixed.right { model_type = "mine" } } } } }]])
    cbk.create(dir .. "/m.pt", { root = cbk.dict { ["h.0.qkv"] = cbk.tensor(rows_of(grouped), { dtype = "float32" }) } }):commit()
    cbk.config.save(cbk.dict { width = WIDTH, heads = 4, kv = 2, size = SIZE }, dir .. "/a.json")
    local code, _, err = harness.cbk(dir, "convert", "m.pt", "--converter", "own.lua", "--to", "hf", "--config", "a.json", "-o", "there")
    equal(code, 0, err)
    local hf = cbk.open(dir .. "/there/m_to_hf")
    equal({ tree(hf["layers.0.q_proj.weight"]), tree(hf["layers.0.k_proj.weight"]), tree(hf["layers.0.v_proj.weight"]) },
      { tree(q), tree(k), tree(v) })
    code, _, err = harness.cbk(dir, "convert", "there/m_to_hf", "--converter", "own.lua", "--to", "a", "--src-fmt", "hf", "-o", "back")
    equal(code, 0, err)
    equal((harness.cbk(dir, "diff", "m.pt", "back/m_to_hf_to_a.pt")), 0)
    local status, out = harness.cbk(dir, "rules", "own.lua", "m.pt", "--config", "a.json", "--round-trip")
    equal(status, 0, out)
    status, out = harness.cbk(dir, "rules", "own.lua", "back/m_to_hf_to_a.pt", "--round-trip") -- its config is beside it
    equal(status, 0, out)
    assert(out:find("config: back/m_to_hf_to_a.json\n", 1, true), out)
    status, out = harness.cbk(dir, "rules", "own.lua", "there/m_to_hf", "--round-trip")
    equal(status, 0, out)
  end)
end)
