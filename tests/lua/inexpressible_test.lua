-- Models that the Model Zoo cannot compute: the error names the feature.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, is_true = harness.describe, harness.it, harness.is_true

local cases = { olmo2 = "norms of queries and keys", gemma3_text = "rope_local_base_freq", deepseek_v3 = "kv_lora_rank" }

---@return string stderr   of a command that must fail
local function failure(dir, ...)
  local code, _, stderr = harness.cbk(dir, ...)
  is_true(code ~= 0, stderr)
  return stderr
end

describe("Models without a counterpart", function()
  for kind, feature in pairs(cases) do
    it(kind, function()
      local dir = harness.temp_dir()
      cbk.config.save(cbk.dict { model_type = kind, vocab_size = 4, hidden_size = 4 }, dir .. "/config.json")
      local root = cbk.dict { ["model.embed_tokens.weight"] = cbk.full({ 4, 4 }, 1, { dtype = "float32" }) }
      cbk.create(dir .. "/model.safetensors", { root = root }):commit { progress = false }
      for _, stderr in ipairs {
        failure(dir, "convert", dir, "--to", "cs-2.9", "-o", dir .. "/out"),
        failure(dir, "convert-config", dir .. "/config.json", "--model", kind, "--src-fmt", "hf", "--tgt-fmt", "cs-2.9"),
        failure(dir, "params", dir .. "/config.json"),
      } do
        is_true(stderr:find("no counterpart", 1, true) and stderr:find(feature, 1, true), stderr)
      end
    end)
  end

  it("however the name is written", function()
    local stderr = failure(harness.temp_dir(), "convert-config", "x.json", "--model", "Gemma-3", "--src-fmt", "hf", "--tgt-fmt", "cs-2.9")
    is_true(stderr:find("rope_local_base_freq", 1, true), stderr)
  end)
end)

describe("A decoder that sees all tokens", function()
  it("is refused in every family: the Model Zoo's decoders see earlier ones alone", function()
    local dir = harness.temp_dir()
    for _, kind in ipairs { "llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma2", "phi3", "gpt2", "gptj", "gpt_neox", "falcon",
      "bloom", "mpt", "gpt_bigcode" } do
      cbk.fs.write(dir .. "/config.json", ('{"model_type": "%s", "is_causal": false}'):format(kind), { overwrite = true })
      local code, _, err = harness.cbk(dir, "convert-config", "config.json", "--src-fmt", "hf", "--tgt-fmt", "cs-2.5")
      harness.equal(code, 1, kind)
      harness.is_true(err:find("is_causal=false: only true is supported", 1, true), kind .. err)
    end
  end)
end)
