-- Chains: for every model of the catalogue, every two of its formats convert into each other, and a way of several steps, composed
-- in one pass, equals the steps done one by one: tensors, config, and what else a checkpoint holds; what the goldens want otherwise is
-- listed here. Between releases, tensors come from the model's class, configs from the table below; a family that its fields do not suit
-- says here what it needs. What goes to or from Hugging Face begins with a tiny model (tiny.lua).

local cbk = require "cbk"
local converters = require "cbk.converters"
local catalogue, convert = converters.catalogue, converters.convert
local classes = require "cbk.classes"
local releases = require "converters.engine.releases"
local run_config = require "converters.modelzoo.run_config"
local trainer = require "converters.modelzoo.trainer"
local dry_run = require "converters.authoring.dry_run"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local describe, it = harness.describe, harness.it

-- --- model sections, as of the release that a model starts from

---The CS formats of a model that lead to each other: all that it has.
local function formats_of(name)
  local groups = catalogue.groups(catalogue.find(name))
  assert(#groups == 1, name .. " has formats that no way joins")
  return groups[1]
end

---2.1, or the first release since then that has the model.
local function start_of(name)
  for _, format in ipairs(formats_of(name)) do
    local release = catalogue.release(format)
    if releases.since(release, "2.1") then return release end
  end
end

local function format_of(name, release) return catalogue.format_at(catalogue.find(name), release) end

local decoder = {
  vocab_size = 5, hidden_size = 4, num_heads = 2, num_hidden_layers = 1, filter_size = 8, max_position_embeddings = 2,
  use_position_embedding = true, share_embedding_weights = true, norm_type = "layernorm", use_bfloat16 = true, mixed_precision = true,
  precision_opt_level = 1,
}

local function merged(...)
  local out = cbk.dict()
  for _, one in ipairs { ... } do
    for name, value in pairs(one) do out[name] = type(value) == "table" and merged(value) or value end
  end
  return out
end

local no_biases = { use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, use_ffn_bias = false }

local function with(base, more)
  local out = {}
  for name, value in pairs(base) do out[name] = value end
  for name, value in pairs(more) do out[name] = value end
  return out
end

local llama = with(no_biases, { norm_type = "rmsnorm", position_embedding_type = "rotary", nonlinearity = "swiglu" })
local bert = { encoder_nonlinearity = "gelu", pooler_nonlinearity = "gelu", mlm_nonlinearity = "gelu" } -- as 1.7 has them
local vit = { image_size = cbk.list { 4, 4 }, patch_size = cbk.list { 2, 2 }, use_post_embed_layer_norm = true, use_bias_in_output = false }

local plain_vit = { use_post_embed_layer_norm = false, use_bias_in_output = true }

local moe = cbk.dict { { "num_experts", 3 }, { "top_k", 2 }, { "load_balancing_loss_coef", 0.25 } }
local head_norms = { attention_qk_norm_layer = "rmsnorm", layer_norm_epsilon = 0.001, attention_qk_norm_eps = 0.001 }

local families = {
  gpt2 = { -- with muP in the words of 2.2, which 2.3 says in others
    output_logits_scale = 0.5, embeddings_scale = 10.5, scale_qk_dot_by_d = true, alibi_implementation = "expand",
    initializer = { name = "truncated_normal", std = 0.5, a = -1.5, b = 1.5 }, output_layer_initializer = { name = "normal", std = 0.25 },
  },
  gptj = with(no_biases, { use_ffn_bias = true, use_bias_in_output = true, share_embedding_weights = false }),
  ["gpt-neox"] = { use_ffn_bias = true, use_untied_layer_norm = true, share_embedding_weights = false },
  falcon = with(no_biases, { use_untied_layer_norm = true }),
  bloom = { position_embedding_type = "alibi", embedding_layer_norm = true },
  mpt = { position_embedding_type = "alibi" },
  llama = with(llama, { share_embedding_weights = false }), mistral = with(llama, { attention_sliding_window_length = 2 }),
  gemma2 = with(llama, {
    norm_first_sandwich = true, sliding_window_every_other_decoder_layer = true, attention_inner_dim = 8, rotary_dim = 4,
    nonlinearity = "geglu", embeddings_scale = 2, attention_logits_alpha = 0.5, initializer_range = 0.02,
  }),
  qwen2 = with(llama, { use_projection_bias_in_attention = true }),
  mixtral = with(llama, { moe = moe }), phi3 = with(llama, { dropout_rate = 0.5 }),
  qwen3 = with(llama, with(head_norms, { attention_inner_dim = 8, rotary_dim = 4 })),
  ["qwen3-moe"] = with(llama, with(head_norms, { moe = moe })),
  dpo = with(llama, { model_name = "llama", dpo = { beta = 0.5 } }),
  bert = bert, ["bert-qa"] = bert, ["bert-sequence-classifier"] = with(bert, { num_labels = 2 }),
  ["esm-2"] = { -- as params_esm2_t12_35M_UR50D.yaml
    encoder_nonlinearity = "gelu", mlm_nonlinearity = "gelu", disable_nsp = true, embedding_layer_norm = false, use_final_layer_norm = true,
    position_embedding_type = "rotary", rotary_dim = 2, pad_token_id = 1, mask_token_id = 3, token_dropout = true,
  },
  roberta = with(bert, { disable_nsp = true, mask_padding_in_positional_embed = true, pad_token_id = 1, num_segments = 2 }),
  ["bert-token-classifier"] = with(bert, { num_classes = 2 }), ["bert-summarization"] = with(bert, { num_classes = 2 }),
  t5 = {
    src_vocab_size = 5, d_model = 4, d_kv = 3, d_ff = 8, num_heads = 2, use_pre_encoder_decoder_layer_norm = true,
    encoder_num_hidden_layers = 2, decoder_num_hidden_layers = 2, norm_type = "rmsnorm", encoder_nonlinearity = "geglu",
    decoder_nonlinearity = "geglu",
  },
  dpr = { q_encoder = with(decoder, bert), ctx_encoder = with(decoder, bert), scale_similarity = true },
  dragon = { q_encoder = with(decoder, bert), ctx_encoder = with(decoder, bert), softmax_temperature = 2 },
  ["clip-vit"] = vit, vit = with(vit, plain_vit),
  dinov2 = with(with(vit, plain_vit), { layerscale_value = 1, use_masked_patches = true, use_dinov2_classifier = true }),
  mllama = {
    text_model = merged(decoder, llama, {
      num_extra_input_vocab_tokens = 8, cross_attention_layers = cbk.list { 1 }, num_hidden_layers = 2, rotary_dim = 2,
    }),
    image_model = {
      hidden_size = 4, num_heads = 2, num_hidden_layers = 1, num_global_layers = 1, filter_size = 6, vision_output_dim = 4,
      image_size = cbk.list { 4, 4 }, patch_size = cbk.list { 2, 2 }, num_channels = 3, max_num_tiles = 2,
      supported_aspect_ratios = cbk.list { cbk.list { 1, 1 } }, name = "MllamaVisionModel", use_ffn_bias = true,
      use_projection_bias_in_attention = true, use_ffn_bias_in_attention = false, use_conv_patchified_embedding = false,
    },
  },
  ["mmsimple-llava"] = {
    image_model_list = {
      image_models = cbk.list { cbk.dict { image_model = cbk.list { merged(decoder, vit, { image_layer_idx = -1 }) } } },
      global_image_projection = {
        name = "FeedForwardNetwork", input_unit = 4, layers_units = cbk.list { 4, 4 }, use_bias = true,
        layers_activation = cbk.list { "gelu", cbk.null },
      },
    },
    text_model = with(decoder, llama),
  },
  llava = {
    image_model = with(decoder, vit), text_model = with(decoder, llama),
    projector = { image_model = { input_unit = 4, layers_units = cbk.list { 4, 4 }, use_bias = true } },
  },
}

-- a model without a class of its own has the tensors of another one
local class_of = { ["bert-summarization"] = "bert-token-classifier", dpo = "llama" }

-- what is before its keys
local places = {
  dpo = { "policy_model.model.", "ref_model.model." }, llama = { "model." }, gptj = { "model." }, ["bert-qa"] = { "model." },
  mistral = { "model." }, mixtral = { "model." }, gemma2 = { "model." }, phi3 = { "model." }, qwen2 = { "model." },
  qwen3 = { "model." }, ["qwen3-moe"] = { "model." },
}

-- what checkpoints up to 1.9 held as null
local nulls = { gpt2 = "lm_head.weight", t5 = "lm_head.weight", bert = "bert_mlm_head.classifier.ffn.0.linear_layer.weight" }

---What is around the model, in the words of the release.
local function around(release)
  if not releases.since(release, "2.1") then
    return {
      optimizer = {
        optimizer_type = "AdamW", weight_decay_rate = 0.25, beta1 = 0.5, beta2 = 0.75, adjust_learning_rate = { decoder_kernel = 0.5 },
        learning_rate = { scheduler = "Linear", steps = 5, initial_learning_rate = 0.5, end_learning_rate = 0 },
      },
      runconfig = {
        num_act_servers = 1, is_pretrained_checkpoint = true, keep_checkpoint_max = 2, max_steps = 9, use_cs_grad_accum = true,
      },
      train_input = { data_processor = "Processor", batch_size = 2 },
    }
  end
  return {
    optimizer = { optimizer_type = "AdamW", weight_decay = 0.25, learning_rate = 0.5, adjust_learning_rate = { decoder_kernel = 0.5 } },
    runconfig = { max_steps = 9, checkpoint_steps = 3, use_cs_grad_accum = false, num_csx = 1, log_steps = 2 },
    train_input = { data_processor = "Processor", batch_size = 2 },
    sparsity = { type = "static", sparsity = 0.5, param_name_patterns = ".*dense.*" },
  }
end

-- --- checkpoints

-- muP is younger than the oldest releases
local mup = { "output_logits_scale", "embeddings_scale", "scale_qk_dot_by_d" }

---An optimizer that knows the parameters by name; one has a mask, which since 2.1 is beside it.
local function optimizer_of(weights)
  local state, names, sparsity = cbk.dict(), cbk.list(), cbk.dict()
  for i, name in ipairs(cbk.keys(weights)) do
    names[i], state[name] = name, cbk.dict { exp_avg = conversion.counted(weights[name]:shape(), -100 * i) }
    local is_first = cbk.count(sparsity) == 0
    if is_first and name:find "position" then
      sparsity[name] = cbk.dict { mask = conversion.counted(weights[name]:shape(), -100 * i - 50) }
    end
  end
  local groups = cbk.list { cbk.dict { lr = 0.125, params = names } }
  local out = cbk.dict { state = state, param_groups = groups }
  out.sparsity = cbk.dict { state = sparsity, step = 21, kind = "RigL",
    param_groups = cbk.list { cbk.dict { param_names = names, sparsity = cbk.dict { step = 22 } } } }
  return out
end

---@param name string
---@param without? string[]   fields of the family that are left out
---@return Dict config, Dict root   of the release that it starts from
local function made(name, without)
  local model, start = catalogue.find(name), start_of(name)
  local family = families[model.model] or families[model.model:match "^(.*)%-headless$"] or {}
  local config = merged({ model = merged(decoder, family) }, around(start))
  local class, weights = classes.find(class_of[name] or name, "cs-" .. start), cbk.dict()
  for key, tensor in cbk.items(tiny.checkpoint(class, config.model, start)) do
    for _, place in ipairs(places[name] or { "" }) do weights[place .. key] = tensor end
  end
  for _, field in ipairs(without or {}) do config.model[field] = nil end
  local root = cbk.dict { model = weights, global_step = 7, lr_scheduler = cbk.dict { last_epoch = 3 } }
  root.optimizer = optimizer_of(weights)
  root.__metadata__ = cbk.list { cbk.dict { version = start .. ".0", params = cbk.dict { a = 1 } } }
  return config, root
end

-- --- steps, each done once

---The models by their own names; aliases are the same tables.
local function models()
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    if catalogue.find(name).model == name then out[#out + 1] = name end
  end
  return out
end

local function run(name, path, config, root)
  local _, zoo_name = catalogue.find(name)
  local job = { model = catalogue.find(name), zoo_name = zoo_name, path = path, seed = 1, source = root }
  config = convert.config(job, config)
  return { config, convert.checkpoint(job, root) }
end

---`steps(from, path, count)`: the file `from` after the first steps of a path, each computed once.
local function one_by_one(name)
  local done = {}
  local function steps(from, source, path, count)
    if count == 0 then return source end
    local id = from
    for i = 1, count do id = id .. ">" .. path[i].tgt end
    if not done[id] then
      local before = steps(from, source, path, count - 1)
      done[id] = run(name, { path[count] }, before[1], before[2])
    end
    return done[id]
  end
  return steps
end

---A config and a checkpoint of each format that there is a way to from the first; old ones speak their own words around the model.
local function sources(name, steps)
  local from, out = format_of(name, start_of(name)), {}
  local origin, plain, plain_steps = { made(name) }, { made(name, mup) }, one_by_one(name)
  for _, format in ipairs(formats_of(name)) do
    local release = catalogue.release(format)
    local path = format ~= from and catalogue.path(catalogue.find(name), from, format)
    local source = format == from and origin
    if not source and path and releases.since(release, "1.9") then source = steps(from, origin, path, #path) end
    if not source and path then source = plain_steps(from, plain, path, #path) end
    if source and not releases.since(release, start_of(name)) then
      local config, root = cbk.deep_copy(source[1]), cbk.copy(source[2])
      for section, value in cbk.items(merged(around(release))) do config[section] = value end
      root.model = cbk.copy(root.model)
      local null = nulls[name]
      if null and root.model[null] ~= nil and not releases.since(release, "2.0") then root.model[null] = cbk.null end
      source = { config, root }
    end
    out[format] = source or nil
  end
  return out
end

-- --- what goldens want otherwise than the steps

---What the original converter leaves in the config file where it takes these releases at once: `rest` does what it leaves.
local exceptions = {
  { from = "1.8", to = "2.0", why = "it goes by the release that it begins with: run options are cleaned from 1.9 on",
    rest = function(config) return run_config.upgrade(config, "1.9", "2.0") end },
  { from = "2.2", to = "2.4 2.5 2.6 2.7 2.8 2.9", why = "only 2.2 to 2.3 writes a trainer's file, and only 2.3 to 2.4 names the model",
    rest = function(config, zoo_name)
      config = trainer.from_legacy(config, {})
      local model = config.trainer.init.model
      model.name = zoo_name
      for _, part in ipairs { "q_encoder", "ctx_encoder" } do
        if model[part] ~= nil then model[part].name = "bert_model" end
      end
      return config
    end },
}

---Makes comparable what differs as goldens want it: the config as `exceptions` say; and what counts as one conversion adds one entry
---to __metadata__, or none with 1.6, whose checkpoints hold the model alone.
---@return Dict config   of `got`, as by steps
---@return Dict root     of `want`, as at once
local function as_by_steps(name, path, source, got, want)
  local config, root = got[1], cbk.copy(want[2])
  local from, to = catalogue.release(path[1].src), catalogue.release(path[#path].tgt)
  for _, one in ipairs(exceptions) do
    if one.from == from and one.to:find(to, 1, true) then
      assert(not cbk.equal(config, want[1]), one.why .. ": this is so no more")
      config = one.rest(cbk.deep_copy(config), select(2, catalogue.find(name)))
    end
  end
  root.__metadata__ = nil
  if from ~= "1.6" and to ~= "1.6" then
    root.__metadata__ = cbk.list()
    for i, entry in cbk.items(source[2].__metadata__ or cbk.list()) do root.__metadata__[i] = entry end
    root.__metadata__[#root.__metadata__ + 1] = cbk.dict { version = to .. ".0", model_name = "", params = got[1] }
  end
  return config, root
end

local function equal_trees(want, got, what)
  for name in cbk.items(want) do
    if name ~= "model" then conversion.same(got[name], want[name], what .. ": " .. tostring(name)) end
  end
  conversion.same(cbk.count(got), cbk.count(want), what)
  conversion.same(cbk.count(got.model), cbk.count(want.model), what)
  for key, value in cbk.items(want.model) do
    local other = got.model[key]
    assert(other ~= nil, what .. ": " .. key)
    if value ~= other then conversion.same(other:tolist(), value:tolist(), what .. ": " .. key) end
  end
end

---Runs `f` while no file can be opened or made.
local function without_files(f, ...)
  local open, create, io_open = cbk.open, cbk.create, io.open
  local function refuse(path) error("a file is opened: " .. tostring(path), 0) end
  cbk.open, cbk.create, io.open = refuse, refuse, refuse -- luacheck: ignore
  local result = { pcall(f, ...) }
  cbk.open, cbk.create, io.open = open, create, io_open -- luacheck: ignore
  if not result[1] then error(result[2], 0) end
  return unpack(result, 2)
end

---The names of all tensors of a checkpoint's model; those of a composite's parts as "part/key".
local function names_in(root)
  local out = {}
  local function add(tree, prefix)
    for key in cbk.items(tree) do
      if cbk.kind(tree, key) == "dict" then add(tree[key], prefix .. key .. "/") else out[prefix .. key] = true end
    end
  end
  add(root.model or root, "")
  return out
end

local function is_named(warnings, part)
  for _, text in ipairs(warnings) do
    if text:find(part, 1, true) then return true end
  end
  return false
end

---What a leaf says, wherever it is.
local function text_of(value)
  return cbk.json(cbk.kind(value) == "tensor" and cbk.list { value:tolist() } or value)
end

---Whether the tensor of a record is written all the same, as another key has it too.
local function is_kept(record, records)
  for _, other in ipairs(records) do
    local read = type(other.given) == "table" and other.given or { other.given }
    for _, tensor in ipairs(other.target and read or {}) do
      if cbk.kind(tensor) == "tensor" and tensor:same(record.given) then return true end
    end
  end
  return false
end

---Keys that a table has no place for are named in a warning.
local function check_left_out(watch, warnings, what)
  for _, records in ipairs(watch.steps) do
    for _, record in ipairs(records) do
      local is_lost = record.what == "pass" and record.ending.kind == "drop" and record.given ~= cbk.null
      if is_lost and not is_kept(record, records) then
        local is_told = is_named(warnings, record.ending.why) or is_named(warnings, record.source:match "^[^.]+%.[^.]+")
        assert(is_told, ("%s: '%s' is left out without a word"):format(what, record.source))
      end
    end
  end
end

---Whatever is beside the model is in the output, too, or named in a warning; and the optimizer knows the model's own names.
local function check_beside_model(source, output, warnings, what)
  local there = {}
  for _, value in cbk.raw_leaves(output) do there[text_of(value)] = true end
  for path, value in cbk.raw_leaves(source) do
    local top = path:match "^[^.]+"
    local name = path:match "param[a-z_]*%.%d+$" -- they may be called otherwise
    local is_there = top == "model" or top == "__metadata__" or name or path == "lr_scheduler.last_epoch" or there[text_of(value)]
    assert(is_there or is_named(warnings, top), ("%s: %s is gone without a word"):format(what, path))
  end
  if output.optimizer == nil or is_named(warnings, "keeps names of parameters") then return end
  for key in cbk.items(output.optimizer.state) do
    local was_stale = source.model[key] == nil -- an earlier step kept the names, with a warning
    assert(was_stale or output.model[key] ~= nil, ("%s: the optimizer has %s"):format(what, key))
  end
  for _, key in cbk.items(output.optimizer.param_groups[1].params) do
    assert(output.optimizer.state[key] ~= nil, ("%s: a group has %s"):format(what, key))
  end
end

---The plan of a conversion reads and writes the very keys that the conversion does.
local function check_plan(name, path, source, output, what, warnings)
  local model, zoo_name = catalogue.find(name)
  local job = { model = model, zoo_name = zoo_name, path = path, seed = 1, source = source[2] }
  convert.config(job, source[1])
  local watch, read, written = dry_run.watch(job), {}, {}
  job.trace = watch.trace
  convert.checkpoint(job, source[2])
  check_left_out(watch, warnings, what)
  for _, row in ipairs(dry_run.rows(watch)) do
    if row.source then read[row.source] = true end
    if row.target and row.kind ~= "part" then
      assert(not written[row.target], ("%s: '%s' is planned twice"):format(what, row.target))
      written[row.target] = true
    end
  end
  for _, pair in ipairs { { read, names_in(source[2]), "read" }, { written, names_in(output), "written" } } do
    for key in pairs(pair[2]) do assert(pair[1][key], ("%s: '%s' is %s, but not in the plan"):format(what, key, pair[3])) end
    for key in pairs(pair[1]) do assert(pair[2][key], ("%s: the plan has '%s', which is not %s"):format(what, key, pair[3])) end
  end
end

---Where a way ends as the config says what only newer releases know, so do the steps one by one.
local function is_refused(why, path, source, steps)
  local text = type(why) == "table" and why.message or ""
  if not text:find "to keep it, convert to cs-" then return false end
  conversion.fails(text:match "cannot convert.*", steps, path[1].src, source, path, #path)
  return true
end

---Converts along the path, and compares with the steps one by one and with the plan. Returns nothing where the way is refused.
local function check_path(name, path, source, steps)
  local what = ("%s, %s to %s"):format(name, path[1].src, path[#path].tgt)
  local ok, got
  local warnings = conversion.warnings(function() ok, got = pcall(without_files, run, name, path, source[1], source[2]) end)
  if not ok and is_refused(got, path, source, steps) then return end
  if not ok then error(("%s: %s"):format(what, type(got) == "table" and got.message or tostring(got)), 0) end
  local want, config = steps(path[1].src, source, path, #path), got[1]
  if path.at_once then
    local root
    config, root = as_by_steps(name, path, source, got, want)
    want = { want[1], root }
  end
  conversion.same(config, want[1], what .. ": config")
  check_plan(name, path, source, got[2], what, warnings)
  if path[1].src ~= "hf" then check_beside_model(source[2], got[2], warnings, what) end
  return got, want, what
end

local SHARE = 5 -- of the ways between the first and the last release; steps, and the longest ways, are always taken

---@return integer   how many chains of several steps there were
local function check(name)
  local model, count = catalogue.find(name), 0
  local steps = one_by_one(name)
  local from = sources(name, one_by_one(name))
  for _, src in ipairs(formats_of(name)) do
    for _, tgt in ipairs(formats_of(name)) do
      local path = src ~= tgt and catalogue.path(model, src, tgt)
      assert(path or src == tgt, ("%s: no way from %s to %s"):format(name, src, tgt))
      local is_long = path and #path >= #formats_of(name) - 1
      if path and (#path == 1 or is_long or harness.is_sampled(("%s %s %s"):format(name, src, tgt), SHARE)) then
        local got, want, what = check_path(name, path, from[src], steps)
        if got then equal_trees(want[2], got[2], what) end
        count = count + (#path > 1 and 1 or 0)
      end
    end
  end
  return count
end

---To a release and back; the way begins with the Hugging Face layout that its first step reads.
local function check_hugging_face(name)
  local model = catalogue.find(name)
  local formats = formats_of(name)
  for i, format in ipairs(formats) do
    local is_end = i == 1 or i == #formats
    local there, back = catalogue.path(model, "hf", format), catalogue.path(model, format, "hf")
    assert(there and back, ("%s: no way between hf and %s"):format(name, format))
    local is_taken = is_end or harness.is_sampled(("%s hf %s"):format(name, format), SHARE)
    for _, way in ipairs(is_taken and tiny.layouts(name, there[1].converter, there[1].tgt) or {}) do
      local config, root = tiny.model(way)
      local got, want, what = check_path(name, there, { config, root }, one_by_one(name))
      equal_trees(want[2], got[2], what)
      got, want, what = check_path(name, back, got, one_by_one(name))
      conversion.equal_tensors(want[2], got[2], what)
      conversion.equal_tensors(root, got[2], what)
    end
  end
end

-- models that Hugging Face does not have
local without_hf = { ["bert-summarization"] = true }

describe("Chains: every pair of formats", function()
  for _, name in ipairs(models()) do
    it(name .. ", between releases", function()
      local count
      conversion.warnings(function() count = check(name) end)
      assert(count > 0, "there is no chain")
    end)
    if not without_hf[name] then
      it(name .. ", Hugging Face", function() conversion.warnings(check_hugging_face, name) end)
    end
  end

  it("one process reads the source and writes the target, nothing between", function()
    local folder = harness.temp_dir()
    local config, root = made "gpt2"
    cbk.fs.write(folder .. "/params.yaml", cbk.config.dump(config, "yaml"))
    cbk.create(folder .. "/old.mdl", { root = root }):commit { progress = false }
    cbk.fs.write(folder .. "/probe.lua", [[
      local cbk = require "cbk"
      for _, name in ipairs { "open", "create" } do
        local call = cbk[name]
        cbk[name] = function(path, ...) print(name, path) return call(path, ...) end
      end
      return { { model = "probe" } }
    ]])
    local code, out, err = harness.cbk(folder, "convert", "--converter", "probe.lua", "--model", "gpt2", "--src-fmt", "cs-2.1",
      "--tgt-fmt", "cs-2.9", "--config", "params.yaml", "old.mdl")
    harness.equal(code, 0, err)
    harness.equal(out:match "^(.-)Checkpoint saved", "open\told.mdl\ncreate\t./old_to_cs-2.9.mdl\n")
  end)
end)
