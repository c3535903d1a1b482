-- Keys that a model does not have: weights under other names, heads of other classes, adapters, and what may be left out. Each command
-- line that a message gives is followed.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"

converters.load()

local describe, it, equal = harness.describe, harness.it, harness.equal

local has, lacks = harness.has, harness.lacks

local OPTION = "--drop-unmatched-keys"

local llama = cbk.dict { { "architectures", cbk.list { "LlamaForCausalLM" } }, { "model_type", "llama" }, { "vocab_size", 12 },
  { "hidden_size", 8 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 2 }, { "intermediate_size", 16 },
  { "tie_word_embeddings", false } }

---A folder with a config and a pickle of a tree.
local function folder(config, root)
  local dir = harness.temp_dir()
  cbk.create(dir .. "/model.pt", { root = root }):commit { progress = false }
  if config then cbk.config.save(config, dir .. "/config.json") end
  return dir
end

---The tensors of a class, by other names; those without one are left out.
---@param change? fun(key: string): string|nil
local function weights(config, model, change)
  local out = cbk.dict()
  for key, tensor in cbk.items(classes.new(config, model, "hf")) do
    local name = key
    if change then name = change(key) end
    if name then out[name] = tensor end
  end
  return out
end

---What `cbk identify` finds, and the lines of its reason.
local function identified(dir)
  local _, out, err = harness.cbk(dir, "identify", "--json", "model.pt")
  if out == "" then error(err, 2) end
  local found = cbk.totable(cbk.config.parse(out, "json"))
  return found, table.concat(found.why, "\n")
end

local function convert(dir, file, ...) return harness.cbk(dir, "convert", file, "--to", "cs-2.4", "-o", "out", ...) end

---Runs the command line in backquotes, with the words CHECKPOINT and NEW replaced.
local function follow(dir, text)
  local words = {}
  local command = text:match "`cbk (.-)`" or error("no command in\n" .. text, 2)
  for word in command:gmatch "%S+" do
    words[#words + 1] = (word:gsub("'", ""):gsub("^CHECKPOINT$", "model.pt"):gsub("^NEW$", "new.pt"))
  end
  local code, _, err = harness.cbk(dir, unpack(words))
  equal(code, 0, command .. "\n" .. err)
end

describe("Weights under other names", function()
  local function below(prefix)
    return function(root)
      local out = cbk.dict()
      for key, tensor in cbk.items(root) do out[prefix .. key] = tensor end
      return out
    end
  end
  local function in_layers(name)
    return function(root)
      local out = cbk.dict()
      for key, tensor in cbk.items(root) do out[(key:gsub("^(model%.layers%.%d+%.)", "%1" .. name .. "."))] = tensor end
      return out
    end
  end
  ---Each tree of a training script, and what of it is looked through.
  local wrappers = {
    ddp = { below "module.", "'module.'" }, compile = { below "_orig_mod.", "'_orig_mod.'" },
    both = { below "module._orig_mod.", "'_orig_mod.' and 'module.'" },
    fsdp = { in_layers "_fsdp_wrapped_module", "'_fsdp_wrapped_module.'" },
    activations = { in_layers "_checkpoint_wrapped_module", "'_checkpoint_wrapped_module.'" },
    compiled_layers = { in_layers "_orig_mod", "'_orig_mod.'" },
    peft = { below "base_model.model.", "'base_model.model.'" },
    lightning = { function(root)
      return cbk.dict { { "epoch", 3 }, { "state_dict", below "model."(root) }, { "optimizer_states", cbk.list { 1 } } }
    end, "'state_dict.' and 'model.'; beside them, and not read: epoch, optimizer_states" },
    deepspeed = { function(root) return cbk.dict { { "module", root }, { "global_steps", 5 } } end, "'module.'; beside them" },
    loop = { function(root) return cbk.dict { { "model", root }, { "step", 5 } } end, "'model.'; beside them, and not read: step" },
    loop_of_tensors = { function(root)
      return cbk.dict { { "model", root }, { "loss", cbk.full({}, 1.5) }, { "rng_state", cbk.full({ 16 }, 1, { dtype = "uint8" }) },
        { "steps", cbk.full({ 1 }, 5) } }
    end, "'model.'; beside them, and not read: loss, rng_state, steps" },
    loop_of_ddp = { function(root)
      return cbk.dict { { "model", below "module."(root) }, { "optimizer", cbk.dict { a = 1 } } }
    end, "'model.' and 'module.'; beside them, and not read: optimizer" },
  }
  ---Names that no wrapper explains, and a part of the reason.
  local cases = {
    vision = { function(root)
      local out = cbk.dict()
      for key, tensor in cbk.items(root) do out[(key:gsub("^model%.", "model.language_model."))] = tensor end
      return out
    end, "model.language_model.*=model.*" },
    rewards = { function(root)
      local out = below "pretrained_model."(root)
      out["v_head.summary.weight"] = cbk.full({ 1, 8 }, 1)
      return out
    end, "(leaves out v_head.summary.weight)" },
    body = { function(root)
      local out = cbk.dict()
      for key, tensor in cbk.items(root) do out[(key:gsub("^model%.", ""))] = tensor end
      return out
    end, "with the prefix 'model.' before most of them" },
  }
  local root = weights(llama, "llama")

  for name, case in pairs(wrappers) do
    it("are looked through: " .. name, function()
      local dir = folder(llama, case[1](root))
      local found, why = identified(dir)
      equal({ found.model, found.format, found.class }, { "llama", "hf", "LlamaForCausalLM" }, why)
      has(why, "the names are those without " .. case[2])
      cbk.create(dir .. "/plain.pt", { root = root }):commit { progress = false }
      local options = { "--model", "llama", "--src-fmt", "hf", "--config", "config.json" }
      for number, more in ipairs { {}, options } do
        local code, said, err = convert(dir, "model.pt", "--overwrite", unpack(more))
        equal(code, 0, number .. err)
        has(said .. err, case[2])
        equal((harness.cbk(dir, "convert", "plain.pt", "--to", "cs-2.4", "-o", "plain", "--overwrite", unpack(options))), 0)
        equal((harness.cbk(dir, "diff", "out/model_to_cs-2.4.mdl", "plain/plain_to_cs-2.4.mdl")), 0)
      end
      equal((harness.cbk(dir, "diff", "model.pt", "plain/plain_to_cs-2.4.mdl", "--model", "llama")), 0)
      local status, text = harness.cbk(dir, "check", "model.pt")
      equal(status, 0, text)
    end)
  end

  for name, case in pairs(cases) do
    it("are renamed by the command that identify gives: " .. name, function()
      local dir = folder(llama, case[1](root))
      local found, why = identified(dir)
      equal({ found.model, found.format }, { cbk.null, "hf" }, why)
      has(why, "LlamaForCausalLM")
      has(why, case[2])
      local code, _, err = convert(dir, "model.pt")
      equal(code, 2)
      has(err, found.why[#found.why])
      lacks(err, OPTION)
      lacks(err, "there is no ")
      follow(dir, why)
      code, _, err = convert(dir, "new.pt", "--config", "config.json")
      equal(code, 0, err)
      cbk.create(dir .. "/plain.pt", { root = root }):commit { progress = false }
      equal((harness.cbk(dir, "diff", "new.pt", "plain.pt")), 0)
    end)
  end

  it("are not looked through where a head may be beside them", function()
    local body, head = cbk.copy(root), cbk.dict { weight = root["lm_head.weight"] }
    body["lm_head.weight"] = nil
    for _, tree in ipairs {
      cbk.dict { { "model", body }, { "lm_head", head } }, cbk.dict { { "state_dict", body }, { "classifier", head } },
      cbk.dict { { "state_dict", body }, { "parts", cbk.dict { { "head", head } } } },
    } do
      local dir = folder(llama, tree)
      local found, why = identified(dir)
      equal(found.model, cbk.null, why)
      local code, _, err = convert(dir, "model.pt")
      equal(code ~= 0, true, err)
      equal(cbk.fs.exists(dir .. "/out"), false)
    end
  end)

  it("keep a prefix where the config names a class that no model has", function()
    local body = cbk.copy(root)
    body["lm_head.weight"] = nil
    local config = conversion.with(llama, { architectures = cbk.list { "LlamaForSequenceClassification" } })
    for _, tree in ipairs { body, cbk.dict { { "model", body }, { "step", 1 } } } do
      local found, why = identified(folder(config, tree))
      equal(found.model, cbk.null, why)
    end
  end)

  it("are never a model by a config that does not describe them, which is named", function()
    local dir = folder(llama, cbk.dict { { "model", cbk.dict { { "a.weight", cbk.tensor { 1 } } } } })
    local found, why = identified(dir)
    equal(found.model, cbk.null)
    has(why, "config.json' is one of Hugging Face, but the checkpoint has a dict 'model'")
  end)

  it("are of the model with a head, if the user asks for the one without", function()
    local options = { "--model", "llama-headless", "--src-fmt", "hf", "--config", "config.json" }
    local dir = folder(llama, below "module."(root))
    local code, _, err = convert(dir, "model.pt", unpack(options))
    equal(code, 1)
    has(err, "they are those of --model llama")
    lacks(err, "`cbk copy")
    dir = folder(llama, cases.body[1](root))
    code, _, err = convert(dir, "model.pt", unpack(options))
    equal(code, 1)
    has(err, "they are those of --model llama with the prefix 'model.' before most of them: `cbk copy")
    follow(dir, err)
    code, _, err = convert(dir, "new.pt", "--config", "config.json")
    equal(code, 0, err)
  end)

  ---By model: the class with a head, the prefix of the body that is lost, and fields beside those of a LLaMA.
  local bodies = {
    llama = { "LlamaForCausalLM", "model.", {} }, mistral = { "MistralForCausalLM", "model.", { sliding_window = 8 } },
    qwen2 = { "Qwen2ForCausalLM", "model.", {} }, mixtral = { "MixtralForCausalLM", "model.", { num_local_experts = 2 } },
    gpt2 = { "GPT2LMHeadModel", "transformer.", { n_embd = 8, n_head = 2, n_layer = 2, n_positions = 16 } },
    gptj = { "GPTJForCausalLM", "transformer.", { n_embd = 8, n_head = 2, n_layer = 2, n_positions = 16, rotary_dim = 4 } },
    gpt_neox = { "GPTNeoXForCausalLM", "gpt_neox.", {}, "gpt-neox" }, falcon = { "FalconForCausalLM", "transformer.", {} },
    bert = { "BertForPreTraining", "bert.", { tie_word_embeddings = true } },
  }
  for kind, case in pairs(bodies) do
    it("are those of the class with a head, where the body lacks its prefix: " .. kind, function()
      local config = conversion.with(llama, { model_type = kind, architectures = cbk.list { case[1] } })
      for field, value in pairs(case[3]) do config[field] = value end
      local all, out = weights(config, case[4] or kind), cbk.dict()
      for key, tensor in cbk.items(all) do out[(key:gsub("^" .. case[2], ""))] = tensor end
      local dir = folder(config, out)
      local found, why = identified(dir)
      equal(found.model, cbk.null, why)
      has(why, ("the tensors are those of %s with the prefix '%s' before most of them"):format(case[1], case[2]))
      follow(dir, why)
      cbk.create(dir .. "/plain.pt", { root = all }):commit { progress = false }
      equal((harness.cbk(dir, "diff", "new.pt", "plain.pt")), 0)
    end)
  end

  it("are no command if a weight is missing, or has another shape", function()
    for _, change in ipairs {
      function(out) out["module.model.norm.weight"] = nil end,
      function(out) out["module.model.norm.weight"] = cbk.full({ 9 }, 1) end,
    } do
      local out = below "module."(root)
      change(out)
      local _, why = identified(folder(llama, out))
      lacks(why, "`cbk copy")
    end
  end)

  it("are those of a class without a head, which has no prefix", function()
    local config = conversion.with(llama, { architectures = cbk.list { "LlamaModel" } })
    local dir = folder(config, weights(llama, "llama", function(key) return key ~= "lm_head.weight" and key or nil end))
    local found, why = identified(dir)
    equal(found.model, "llama-headless", why)
    has(why, "the names are those without 'model.'")
    local code, _, err = convert(dir, "model.pt")
    equal(code, 0, err)
    has(err, "'lm_head.weight' is not in the checkpoint: normal random values (0, 0.02) of seed 0 are written")
  end)
end)

describe("Biases of norms that the model does not have", function()
  it("are named where they are written", function()
    for _, key in ipairs { "model.norm.bias", "model.layers.0.input_layernorm.bias" } do
      local root = weights(llama, "llama")
      root[key] = cbk.full({ 8 }, 1)
      local code, _, err = convert(folder(llama, root), "model.pt")
      equal(code, 0, err)
      has(err, "the checkpoint has 1 tensor that LlamaForCausalLM does not have with this config: " .. key)
    end
  end)
end)

describe("Norms of queries and keys that a LLaMA does not compute with", function()
  it("are named by all commands, and copied as the original converter does", function()
    local root, key = weights(llama, "llama"), "model.layers.0.self_attn.q_norm.weight"
    root[key] = cbk.full({ 4 }, 1)
    local dir = folder(llama, root)
    local found, why = identified(dir)
    equal(found.model, "llama")
    has(why, "1 unknown: " .. key)
    local status, out = harness.cbk(dir, "check", ".")
    equal(status, 1)
    has(out, key .. ": LlamaForCausalLM has no such tensor with this config")
    local code, _, err = convert(dir, "model.pt")
    equal(code, 0, err)
    has(err, "the checkpoint has 1 tensor that LlamaForCausalLM does not have with this config: " .. key)
    has(err, "the output has 1 tensor that GPT2LMHeadModel does not have")
  end)
end)

describe("A tied weight that is there under one of its names", function()
  it("is used, or the conversion is refused, never left out of Hugging Face's files", function()
    local config, root = conversion.run("llama", "hf", "cs-2.1", llama, weights(llama, "llama"))
    for _, name in ipairs { "ln_f.weight", "transformer_decoder.norm.weight" } do
      local less = cbk.copy(root)
      less.model = cbk.copy(root.model)
      equal(less.model[name] ~= nil, true)
      less.model[name] = nil
      local fine, back, problem
      conversion.warnings(function()
        fine, problem = pcall(function() back = select(2, conversion.run("llama", "cs-2.1", "hf", config, less)) end)
      end)
      if fine then
        equal(back["model.norm.weight"]:tolist(), root.model["ln_f.weight"]:tolist())
      else
        has(problem.message, "the output lacks 1 weight that its model needs: model.norm.weight")
      end
    end
  end)
end)

describe("The number of classes that a config does not say", function()
  it("is 2 to check, identify and convert", function()
    local bert = cbk.dict { { "architectures", cbk.list { "BertForSequenceClassification" } }, { "model_type", "bert" },
      { "vocab_size", 20 }, { "hidden_size", 8 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 1 }, { "intermediate_size", 16 },
      { "problem_type", "single_label_classification" } }
    local root = weights(bert, "bert-sequence-classifier")
    root["classifier.weight"], root["classifier.bias"] = cbk.full({ 3, 8 }, 1), cbk.full({ 3 }, 1)
    local dir = folder(bert, root)
    local code, out = harness.cbk(dir, "check", "model.pt")
    equal(code, 1)
    has(out, "classifier.weight: expected [2, 8] (labels=2), found [3, 8]")
    has(select(2, identified(dir)), "(labels=2), found [3")
    local status, _, err = convert(dir, "model.pt")
    equal(status, 1)
    has(err, "found [3")
  end)
end)

describe("A head of another class", function()
  local function rewards(change)
    local config = conversion.with(llama, { architectures = cbk.list { "LlamaForSequenceClassification" } })
    local root = weights(llama, "llama", function(key) return key ~= "lm_head.weight" and key or nil end)
    root["score.weight"] = cbk.full({ 1, 8 }, 1)
    if change then change(config, root) end
    return folder(config, root), config
  end

  it("is named, with the class, and what can be converted", function()
    local dir = rewards()
    local found, why = identified(dir)
    equal(found.model, cbk.null)
    has(why, "the config says architectures=LlamaForSequenceClassification, which is not supported (LlamaForCausalLM, LlamaModel are)")
    has(why, "not of that class: score.weight")
    has(why, "without its own head it is LlamaModel")
    follow(dir, why)
    local code, _, err = convert(dir, "new.pt", "--config", "config.json", "--model", "llama-headless")
    equal(code, 0, err)
    has(err, "'lm_head.weight' is not in the checkpoint")
  end)

  it("is never left out for a head of random numbers", function()
    local dir = rewards()
    for _, model in ipairs { "llama", "llama-headless" } do
      for _, option in ipairs { {}, { OPTION } } do
        local code, _, err = convert(dir, "model.pt", "--model", model, "--src-fmt", "hf", "--config", "config.json", unpack(option))
        equal({ code, cbk.fs.exists(dir .. "/out") }, { 1, false })
        has(err, "score.weight")
        has(err, "architectures=LlamaForSequenceClassification, which is not supported")
        lacks(err, "add " .. OPTION)
      end
    end
  end)

  it("may be left out where the model's own head is tied", function()
    local dir = rewards(function(config) config.tie_word_embeddings = true end)
    local found, why = identified(dir)
    equal(found.model, "llama", why)
    has(why, "architectures=LlamaForSequenceClassification, which is not supported (LlamaForCausalLM is)")
    local _, findings = harness.cbk(dir, "check", ".")
    has(findings, "try: keep it: the config says architectures=LlamaForSequenceClassification, which is not supported")
    local code, _, err = convert(dir, "model.pt")
    equal(code, 1)
    has(err, "score.weight; the config says architectures=LlamaForSequenceClassification, which is not supported (LlamaForCausalLM is); "
      .. "to leave it out, if the model works without it, add " .. OPTION)
    equal((convert(dir, "model.pt", OPTION)), 0)
    local made = dir .. "/out/model_to_cs-2.4.mdl"
    local status, _, problem = harness.cbk(dir, "convert", made, "--to", "hf", "-o", "back")
    equal(status, 0, problem)
    local name = cbk.fs.list(dir .. "/back")[1]
    local back = cbk.config.load(cbk.fs.exists(dir .. "/back/config.json") and dir .. "/back/config.json"
      or ("%s/back/%s/config.json"):format(dir, name))
    equal(cbk.totable(back.architectures), { "LlamaForCausalLM" }) -- as that is what the tensors are
  end)

  it("is missing in a bare encoder, which is not one of the classes that have one", function()
    local bert = cbk.dict { { "architectures", cbk.list { "BertModel" } }, { "model_type", "bert" }, { "vocab_size", 20 },
      { "hidden_size", 8 }, { "num_attention_heads", 2 }, { "num_hidden_layers", 1 }, { "intermediate_size", 16 } }
    local dir = folder(bert, weights(bert, "bert", function(key) return key:match "^bert%.(.*)" end))
    local _, why = identified(dir)
    has(why, "the config says architectures=BertModel, which is not supported (BertForPreTraining, BertForQuestionAnswering, ")
    has(why, "with the prefix 'bert.' its tensors are those of BertForPreTraining, but these are missing: cls.predictions.")
    lacks(why, "not tensors of BertForQuestionAnswering")
    local code, _, err = convert(dir, "model.pt")
    equal(code, 2)
    has(err, "; use a checkpoint of a supported class\n")
  end)
end)

describe("Keys without a rule: what may be left out", function()
  ---What converting a LLaMA says, after a change of its tensors.
  local function said(change, ...)
    local root = weights(llama, "llama")
    change(root)
    local dir = folder(llama, root)
    local code, _, err = convert(dir, "model.pt", "--model", "llama", "--src-fmt", "hf", "--config", "config.json", ...)
    return code, err, dir
  end
  local function renamed(old, new)
    return function(root) root[new], root[old] = root[old], nil end
  end
  local function added(...)
    local names = { ... }
    return function(root)
      for _, name in ipairs(names) do root[name] = cbk.full({ 3 }, 1) end
    end
  end

  ---A change, whether the option is advised, whether it works, and what is said.
  local cases = {
    ["a few extra keys"] = { added("extra.weight", "extra.bias"), true, true, "to leave them out, if the model works without them, add" },
    ["one key of each layer"] = { added("model.layers.0.rope.freq", "model.layers.1.rope.freq"), true, true, "to leave them out" },
    ["another vector of a norm"] = { added "model.norm.offset", false, false, "is part of a module of the model" },
    ["a scale of a weight"] = { added "model.layers.0.self_attn.q_proj.weight_scale_inv", false, false, "the weights are quantised" },
    ["what belongs to a weight"] = { added "model.layers.0.self_attn.q_proj.weight.absmax", false, false, "the weights are quantised" },
    ["a scale of nothing"] = { added "model.layers.0.self_attn.weight_scale_inv", false, false, "is named as a scale of quantised" },
    ["another norm in each layer"] = { added("model.layers.0.last_norm.weight", "model.layers.1.last_norm.weight"), false, false,
      "is part of a module of the model" },
    ["sinks of attention"] = { added("model.layers.0.self_attn.sinks", "model.layers.1.self_attn.sinks"), false, false,
      "is part of a module of the model" },
    ["a mask of attention"] = { function(out)
      out["model.layers.0.self_attn.causal_mask"] = cbk.full({ 1, 1, 4, 4 }, 1, { dtype = "bool" })
    end, true, true, "to leave it out" },
    ["extra state of a layer without any"] = { added "model.layers.0.self_attn.q_proj._extra_state", true, true, "to leave it out" },
    ["tables of positions"] = { added("model.layers.0.self_attn.cos_cached", "model.layers.1.self_attn.cos_cached"), true, true,
      "to leave them out" },
    ["norms of weights"] = { added "model.layers.0.mlp.up_proj.weight_g", false, false, "is part of a module of the model" },
    ["keys of many kinds"] = { added("a.w", "b.w", "c.w", "d.w"), false, true, "check with `cbk identify`" },
    ["a weight by another name"] = { renamed("model.norm.weight", "model.last.weight"), false, false,
      "1 weight is missing: model.norm.weight" },
    ["a weight that nothing can be"] = { function(root)
      root["model.norm.weight"], root["last.weight"] = nil, cbk.full({ 9 }, 1)
    end, false, false, "1 weight is missing: model.norm.weight" },
    ["a scale of the head"] = { added "lm_head.pre_quant_scale", false, false, "is part of a module of the model" },
    ["a module below the head"] = { added "lm_head.adapter.weight", false, false, "is part of a module of the model" },
    ["DoRA of the head"] = { added "lm_head.lora_magnitude_vector.default.weight", false, false, "is part of an adapter (PEFT)" },
    ["a head trained in memory"] = { function(root)
      local head = root["lm_head.weight"]
      root["lm_head.original_module.weight"], root["lm_head.modules_to_save.default.weight"], root["lm_head.weight"] = head, head, nil
    end, false, false, "is part of an adapter (PEFT) in the model: merge it in Python" },
    ["embeddings trained in memory"] = { added "model.embed_tokens.modules_to_save.default.weight", false, false,
      "is part of an adapter (PEFT)" },
    ["LoRA matrices"] = { added "model.layers.0.self_attn.q_proj.lora_A.weight", false, false, "`cbk fold-lora-checkpoint --adapter DIR" },
  }
  for name, case in pairs(cases) do
    it(name, function()
      local change, is_advised, is_dropped, text = unpack(case)
      local code, err = said(change)
      equal(code, 1)
      has(err, text)
      equal(err:find("add " .. OPTION, 1, true) ~= nil, is_advised, err)
      local dropped, why, dir = said(change, OPTION)
      equal(dropped, is_dropped and 0 or 1, why)
      equal(cbk.fs.exists(dir .. "/out"), is_dropped)
      has(why, is_dropped and "dropped because of " .. OPTION or text)
    end)
  end

  it("new names are advised only for tensors of the same shape", function()
    local _, err = said(cases["a weight by another name"][1])
    has(err, "if they have other names here, rename them with `cbk copy --rename`")
    _, err = said(cases["a weight that nothing can be"][1])
    has(err, "new names do not help, because no tensor without a rule has its shape")
  end)

  it("never more than half of the keys", function()
    local many = {}
    for i = 1, 30 do many[i] = ("other_%d.weight"):format(i) end
    local code, err, dir = said(added(unpack(many)), OPTION)
    equal({ code, cbk.fs.exists(dir .. "/out") }, { 1, false })
    has(err, "--drop-unmatched-keys leaves out a few extra keys, but these are 30 of ")
  end)

  it("never what may be a weight that is made of random numbers instead", function()
    local root = weights(llama, "llama", function(key) return key:gsub("^model%.", "") end)
    root["output.weight"], root["lm_head.weight"] = root["lm_head.weight"], nil
    local function headless(...)
      local dir = folder(llama, root)
      return convert(dir, "model.pt", "--model", "llama-headless", "--src-fmt", "hf", "--config", "config.json", ...)
    end
    local code, _, err = headless(OPTION)
    equal(code, 1)
    has(err, "'lm_head.weight' would get random numbers, though one of these keys has its shape")
    root["output.weight"] = cbk.full({ 1, 8 }, 1) -- as of a classifier
    code, _, err = headless(OPTION)
    equal(code, 0, err)
    has(err, "'lm_head.weight' is not in the checkpoint: normal random values")
  end)

  it("not experts in one tensor of another form, which no new name makes several", function()
    local config = cbk.dict { { "architectures", cbk.list { "MixtralForCausalLM" } }, { "model_type", "mixtral" }, { "vocab_size", 12 },
      { "hidden_size", 8 }, { "num_attention_heads", 2 }, { "num_key_value_heads", 2 }, { "num_hidden_layers", 1 },
      { "intermediate_size", 16 }, { "num_local_experts", 2 } }
    local root = weights(config, "mixtral", function(key) return not key:find "%.experts%." and key or nil end)
    root["model.layers.0.block_sparse_moe.experts.gate_up_proj"] = cbk.full({ 2, 32, 8 }, 1)
    root["model.layers.0.block_sparse_moe.experts.down_proj"] = cbk.full({ 2, 8, 15 }, 1)
    for _, option in ipairs { {}, { OPTION } } do
      local code, _, err = convert(folder(config, root), "model.pt", unpack(option))
      equal(code, 1)
      lacks(err, "rename them")
      has(err, option[1] and "never makes up what is missing" or "has the experts in one tensor, in a form that is not known")
    end
  end)
end)

describe("Adapters", function()
  it("of PEFT are folded, not converted", function()
    local key = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight"
    local root = cbk.dict { { key:format "A", cbk.full({ 2, 8 }, 1) }, { key:format "B", cbk.full({ 8, 2 }, 1) } }
    for kind, advice in pairs { LORA = "fold-lora-checkpoint --adapter . BASE -o NEW`", LOHA = "merge it into its base model with PEFT" } do
      local dir = folder(nil, root)
      cbk.fs.write(dir .. "/adapter_config.json", ('{"peft_type": "%s"}'):format(kind))
      local found, why = identified(dir)
      equal(found.model, cbk.null)
      has(why, "adapter of PEFT")
      has(why, advice)
      local code, _, err = convert(dir, "model.pt")
      equal(code, 2)
      has(err, advice)
      lacks(err, "no model has these tensor")
    end
  end)

  it("in a checkpoint of the Model Zoo are folded, as identify says, too", function()
    local dir = harness.temp_dir()
    local zoo, root
    conversion.warnings(function() zoo, root = conversion.run("llama", "hf", "cs-2.4", llama, classes.new(llama, "llama", "hf")) end)
    local layer = "transformer_decoder.layers.0.self_attn.proj_q_dense_layer"
    root.model[layer .. ".lora_A"], root.model[layer .. ".lora_B"] = cbk.full({ 2, 8 }, 1), cbk.full({ 8, 2 }, 1)
    cbk.config.save(zoo, dir .. "/a.yaml")
    cbk.create(dir .. "/a.mdl", { root = root, h5_version = "0.5", framework_version = "2.4.0" }):commit { progress = false }
    local _, out = harness.cbk(dir, "identify", "a.mdl")
    has(out, "these are LoRA weights, which only the Model Zoo has: fold them into the weights first with `cbk fold-lora-checkpoint`")
    lacks(out, OPTION)
  end)

  it("beside a whole model are named", function()
    local dir = folder(llama, weights(llama, "llama"))
    cbk.fs.write(dir .. "/adapter_config.json", '{"peft_type": "LORA"}')
    local words = "there is an adapter of PEFT beside the model"
    has(select(2, identified(dir)), words)
    local code, _, err = convert(dir, "model.pt")
    equal(code, 0)
    has(err, words)
    local _, out = harness.cbk(dir, "check", "model.pt", "--all")
    has(out, words .. ": it is not part of the checkpoint; try: fold")
    lacks(out, "correct the config")
  end)

  it("that were trained after the vocabulary grew name what gives the base model one of that size", function()
    local dir = folder(llama, weights(llama, "llama"))
    local key = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight"
    cbk.create(dir .. "/a/adapter_model.bin", { root = cbk.dict {
      { key:format "A", cbk.full({ 2, 8 }, 1) }, { key:format "B", cbk.full({ 8, 2 }, 1) },
      { "base_model.model.lm_head.weight", cbk.full({ 15, 8 }, 1) },
    } }):commit { progress = false }
    cbk.fs.write(dir .. "/a/adapter_config.json", '{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    local code, _, err = harness.cbk(dir, "fold-lora-checkpoint", "--adapter", "a", "model.pt", "-o", "merged.bin")
    equal(code, 1)
    has(err, "give the base model 15 words with transformers (model.resize_token_embeddings(15), then save_pretrained)")
  end)
end)
