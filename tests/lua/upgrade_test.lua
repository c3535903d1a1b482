-- Upgrading old checkpoints: the rules of the spec fix, LoRA folding, muP configs, and `cbk upgrade` from end to end.

local cbk = require "cbk"
local classes = require "cbk.classes"
local config_changes = require "cbk.config_changes"
local python_int = require "cbk.python_int"
local lost_leaves = require "cbk.upgrade.lost_leaves"
local release = require "cbk.recognise.release"
local spec = require "cbk.checkpoint_spec"
local upgrade = require "cbk.upgrade"
local weight_names = require "cbk.recognise.names"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"

converters.load()

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

local function set(names)
  local has = {}
  for _, name in ipairs(names) do has[name] = true end
  return function(name) return has[name] == true end
end

describe("the spec fix", function()
  it("reads whole numbers as Python does", function()
    for text, number in pairs { ["7"] = 7, [" +1_000\n"] = 1000, ["-3"] = -3, ["007"] = 7 } do equal(python_int(text), number, text) end
    for _, text in ipairs { "", " ", "1.0", "1e3", "0x10", "_1", "1_", "1__0", "1 2", "+-1", "9999999999999999999" } do
      equal(python_int(text), nil, text)
    end
  end)

  it("finds the other name of a missing weight by its end", function()
    local keys = {
      "model.lm_head.weight", "optimizer.lm_head.weight", "my_ln_f.weight", "a.transformer_decoder.norm.bias", "a.ln_f.bias",
    }
    local stored = {
      "model.embedding_layer.word_embeddings.weight", "optimizer.embedding_layer.word_embeddings.weight",
      "my_transformer_decoder.norm.weight", "a.ln_f.bias",
    }
    equal(spec.missing_aliases(keys, set(stored)), {
      { key = keys[1], source = stored[1] }, { key = keys[2], source = stored[2] },
      { key = keys[3], source = stored[3] }, { key = keys[4], source = stored[4] },
    })
    equal(spec.missing_aliases(stored, set(stored)), {})
    equal(spec.alias_of "x.ln_f.weight", "x.transformer_decoder.norm.weight")
    raises("alias not found for missing key 'model.other'", function() spec.missing_aliases({ "model.other" }, set {}) end)
    raises("only embeddings, lm_head and a decoder's final norm can be restored by name", function()
      spec.missing_aliases({ "cls.predictions.decoder.weight" }, set {})
    end)
    raises("could not find key 'lm_head.weight'", function()
      spec.missing_aliases({ "embedding_layer.word_embeddings.weight" }, set { "model.lm_head.weight" })
    end)
    raises("could not find key", function()
      spec.missing_aliases({ "lm_head.weight", "embedding_layer.word_embeddings.weight" }, set {})
    end)
  end)

  it("counts the steps of each schedule since its milestone", function()
    local names = {
      "global_step", "lr_scheduler.last_epoch", "lr_scheduler._schedulers.0.last_epoch", "lr_scheduler._schedulers.2.last_epoch",
      "lr_scheduler._schedulers.1.last_epoch", "lr_scheduler._milestones.10", "lr_scheduler._milestones.9", "optimizer.last_epoch",
    }
    equal(spec.milestone_names(names), { "lr_scheduler._milestones.9", "lr_scheduler._milestones.10" })
    equal(spec.last_epochs(names, 100, { 30, 120 }), {
      { name = names[2], value = 100 }, { name = names[3], value = 100 }, { name = names[4], value = 0 }, { name = names[5], value = 70 },
    })
    equal(spec.last_epochs({ "lr_scheduler.4.last_epoch" }, 5, {}), { { name = "lr_scheduler.4.last_epoch", value = 5 } })
    raises("expected a milestone for schedule 3", function() spec.last_epochs({ "lr_scheduler.3.last_epoch" }, 5, { 1, 2 }) end)
    raises("'x' at its end is not a whole number", function() spec.milestone_names { "lr_scheduler.milestones.x" } end)
  end)
end)

describe("what a file does not store", function()
  local none = cbk.null

  ---A checkpoint whose optimizer has the states of two parameters, of 2 × 3 and of 4 elements.
  local function checkpoint(more)
    local function states(...)
      local shape = { ... }
      local out = cbk.dict { step = cbk.full({}, 7, { dtype = "int64" }) }
      out.exp_avg, out.exp_avg_sq = cbk.full(shape, 1, { dtype = "bfloat16" }), cbk.full(shape, 2, { dtype = "float32" })
      return out
    end
    local first, second = states(2, 3), states(4)
    for name, value in pairs(more or {}) do second[name] = value end
    return cbk.dict { optimizer = cbk.dict { state = cbk.dict { { 0, first }, { 1, second } } }, model = cbk.dict() }
  end

  it("is an error of the run's state, unless that is accepted", function()
    raises("no data is stored for optimizer.state.1.step, lr_scheduler.x: an optimizer or schedule fails with None "
      .. "there; with --accept-missing, the optimizer's state", function()
      lost_leaves.settle(checkpoint { step = none }, { "optimizer.state.1.step", "lr_scheduler.x" })
    end, "key")
    equal(lost_leaves.settle(checkpoint(), { "model.a", "model.b" }),
      { "no data is stored for model.a, model.b: read as None, until a tie of the model fills it" })
    equal(lost_leaves.settle(checkpoint(), { "lr_scheduler.x" }, true),
      { "no data is stored for lr_scheduler.x: it is None, and a run that needs it fails" })
  end)

  it("lets a parameter's optimizer state begin anew, all of it, or none", function()
    for name, shape in pairs { exp_avg = { 4 }, exp_avg_sq = { 4 }, step = {} } do
      local root = checkpoint { [name] = none }
      equal(#lost_leaves.settle(root, { "optimizer.state.1." .. name }, true), 1, name)
      local states = root.optimizer.state
      equal(states[1][name]:shape(), shape)
      equal({ states[1].exp_avg:tolist(), states[1].exp_avg_sq:tolist(), states[1].step:item() }, { { 0, 0, 0, 0 }, { 0, 0, 0, 0 }, 0 })
      equal({ states[1].exp_avg.dtype, states[1].step.dtype }, { "bfloat16", "int64" })
      equal({ states[0].exp_avg:tolist(), states[0].step:item() }, { { { 1, 1, 1 }, { 1, 1, 1 } }, 7 })
    end
    for _, more in ipairs { { exp_avg = none, mu_product = cbk.float(0.5) }, { exp_avg = none, exp_avg_sq = none } } do
      local root = checkpoint(more)
      local reported = lost_leaves.settle(root, { "optimizer.state.1.exp_avg" }, true)
      equal(reported, { "no data is stored for optimizer.state.1.exp_avg: it is None, and a run that needs it fails" })
      equal({ root.optimizer.state[1].exp_avg, root.optimizer.state[1].step:item() }, { none, 7 })
    end
  end)

  it("is None in a file that was written anew", function()
    equal(lost_leaves.with_none_states(checkpoint { exp_avg = none, momentum_buffer = none, other = none }, { "x" }),
      { "x", "optimizer.state.1.exp_avg" })
    equal(lost_leaves.with_none_states(checkpoint { exp_avg = none }, { "optimizer.state.1.exp_avg" }), { "optimizer.state.1.exp_avg" })
    equal(lost_leaves.with_none_states(cbk.dict { model = cbk.dict() }, {}), {})
    equal(lost_leaves.with_none_states(cbk.dict { global_step = none }, {}), { "global_step" })
    equal(lost_leaves.with_none_states(cbk.dict { global_step = none }, { "global_step" }), { "global_step" })
  end)

  it("may be no weight in the end", function()
    local root = cbk.dict { model = cbk.dict { a = none, b = cbk.tensor { 1 } } }
    lost_leaves.check_model(root, function(key) return key == "b" end)
    raises("no data is stored for model.a, and no tie", function() lost_leaves.check_model(root, function() return true end) end, "key")
  end)
end)

describe("telling a release", function()
  local old = cbk.dict { model = cbk.dict() }
  local new = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.dict { name = "gpt2" } } } }

  ---The releases that a checkpoint may be of.
  local function candidates(version, root, config, cstorch, has_scalar_dicts)
    local metadata = cbk.dict()
    metadata.__cstorch_version__ = cstorch
    local format = version and "cerebras-h5" or "torch-zip"
    local checkpoint = { format = format, version = version, metadata = metadata, root = root or cbk.dict() }
    return table.concat(release.candidates(release.evidence(checkpoint, config or cbk.dict(), has_scalar_dicts or false)), " ")
  end

  it("goes by what the file says of itself", function()
    equal(candidates "0.1", "1.6 1.7")
    equal(candidates("0.2", nil, old), "1.8")
    equal(candidates "0.3", "1.9")
    equal(candidates("0.4", nil, old), "1.6 1.7 1.8 1.9 2.0") -- a container that tools wrote for older models
    equal(candidates("0.4", nil, old, "2.1.1"), "2.1")
    equal(candidates("0.5", nil, new), "2.5 2.6 2.7 2.8 2.9")
    equal(candidates("0.5", nil, new, "2.10.0"), "2.9")
    equal(candidates("0.5", nil, old, "2.10.0"), "2.9")
    local said = cbk.dict { __metadata__ = cbk.list { cbk.dict { version = "2.0.0" }, cbk.dict { version = "2.2.0" } } }
    equal(candidates("0.4", said, old, "2.4.0"), "2.2")
    equal(candidates(nil, said, old), "2.2")
  end)

  it("narrows by what it looks like", function()
    equal(candidates(nil, nil, old), "1.6 1.7 1.8 1.9 2.0 2.1 2.2")
    equal(candidates(nil, nil, old, nil, true), "1.6 1.7 1.8 1.9")
    equal(candidates(nil, nil, cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.dict { hidden_size = 1 } } } }), "2.3")
    local model = cbk.dict()
    model["model.embedding_layer.position_embeddings.weight"] = 1
    equal(candidates(nil, cbk.dict { model = model }, cbk.dict { model = cbk.dict { norm_type = "layernorm" } }), "2.0")
    model["model.vision.embedding_layer.position_embeddings.weight"] = 1 -- CLIP's kept its name
    model["model.embedding_layer.position_embeddings.embed.weight"] = 1
    model["model.embedding_layer.position_embeddings.weight"] = nil
    equal(candidates(nil, cbk.dict { model = model }, cbk.dict { runconfig = cbk.dict { autogen_policy = 1 } }), "2.1")
  end)

  it("knows a file by its model, not by the tool that wrote it", function()
    local loader = cbk.dict { dataloader = cbk.dict { samples_streamed = 1, seed = 0 } }
    equal(candidates("0.4", loader, old), "1.8 1.9 2.0")
    for _, text in ipairs { "cerebras: {a: 1}", "model: {use_rms_norm: true}", "model: {use_t5_layer_norm: true}" } do
      local config = cbk.config.parse(text, "yaml")
      equal(candidates("0.4", loader, config), "1.8 1.9", text)
      equal(candidates("0.5", nil, config, "2.10.0"), "1.6 1.7 1.8 1.9", text)
    end
    for _, key in ipairs { "model.bert.embedding_layer.position_embeddings.weight", "relative_pe_helper.slopes",
      "relative_position_encoder.relative_attention_bias.weight", "encoder_embeddings.position_embeddings" } do
      local model = cbk.dict()
      model[key] = 1
      equal(candidates("0.5", cbk.dict { model = model }, cbk.dict(), "2.10.0"), "1.6 1.7 1.8 1.9 2.0", key)
    end
    local of_2_0 = cbk.config.parse("model: {norm_type: layernorm}\ncsconfig: {a: 1}", "yaml")
    equal(candidates("0.4", loader, of_2_0), "2.0")
    equal(candidates("0.4", loader, of_2_0, "2.3.0"), "2.0")
    local both = cbk.config.parse("model: {norm_type: layernorm, use_rms_norm: true}", "yaml")
    equal(candidates("0.4", nil, both), "")
    equal(candidates("0.3", nil, of_2_0), "")
    local said = cbk.dict { __metadata__ = cbk.list { cbk.dict { version = "2.2.0" } } }
    equal(candidates("0.5", said, of_2_0, "2.10.0"), "")
    local habit = release.evidence({ format = "cerebras-h5", version = "0.4", root = cbk.dict() }, both, false)[1]
    equal(release.line(habit), "H5 format 0.4 without a release: up to 2.0 (usually)")
  end)

  it("says which facts contradict each other, and not what was overruled", function()
    local function contradiction(version, root, text, config_path)
      local checkpoint = { format = "cerebras-h5", version = version, root = root or cbk.dict(), metadata = cbk.null }
      local evidence = release.evidence(checkpoint, cbk.config.parse(text, "yaml"), false)
      equal(release.candidates(evidence), {})
      return { release.contradiction(evidence, { checkpoint = "m.mdl", config = config_path }) }
    end
    local of_2_1 = cbk.dict { __metadata__ = cbk.list { cbk.dict { version = "2.1.0" } } }
    equal(contradiction("0.5", of_2_1, "model: {use_bfloat16: true}\ncsconfig: {}", "c.yaml"), {
      "'m.mdl' is of 2.1 (__metadata__ says 2.1.0), but 'c.yaml' has model.use_bfloat16 (up to 2.0), csconfig (up to 2.0)",
      "remove them, or pass --src-fmt cs-2.1" })
    equal(contradiction("0.1", nil, "trainer: {init: {model: {name: gpt2}}}"), {
      "'m.mdl' is of a release up to 1.7 (H5 format 0.1), but its config has a trainer section (2.3 and later)",
      "use the config of the run, or pass --src-fmt cs-X.Y" })
    equal(contradiction("0.4", nil, "model: {norm_type: layernorm, use_rms_norm: true}", "c.yaml"), {
      "'c.yaml' is of different releases: the config has model.use_rms_norm: up to 1.9; the config has model.norm_type: 2.0 and later",
      "correct it, or name the release with --src-fmt cs-X.Y" })
    local habit = release.evidence({ format = "cerebras-h5", version = "0.5", root = cbk.dict { __metadata__ = cbk.list {
      cbk.dict { version = "2.4.0" } } }, metadata = cbk.null }, cbk.config.parse("model: {a: 1}", "yaml"), false)
    release.candidates(habit)
    equal(release.lines(habit), { "__metadata__ says 2.4.0: 2.4" })
  end)

  it("lets habits give way, and sees a contradiction", function()
    equal(candidates("0.4", nil, old, "2.4.0"), "2.4") -- a config of the layout before 2.3 is usable there
    equal(candidates("0.2", nil, new), "")
    equal(release.range { from = "1.6", to = "1.9" }, "up to 1.9")
    equal(release.range { from = "2.3", to = "2.9" }, "2.3 and later")
  end)
end)

describe("changes of a config", function()
  local function config(text) return cbk.config.parse(text, "yaml") end

  it("show known moves, values, and what is new or gone", function()
    local moves = {
      { "b.old", "b.x" }, { "e.some_steps", "e.steps" }, { "b.x", "b.new" }, { "k", "t.Named" }, { "a", "t.a" }, { "e", "t.e" },
    }
    equal(config_changes.lines(config "a: {x: 1, y: {z: 2}}\nb: {old: 5}\nc: 1\nd: gone\ne: {some_steps: 7, n: 1}\nk: Named",
      config "t: {a: {x: 1, y: {z: 2}}, e: {steps: 7, n: 2}, Named: {}}\nb: {new: 5}\nc: 2\nf: [true]", moves), {
      "a -> t.a: x, y.z", "e.some_steps -> t.e.steps", "b.old -> b.new", "e.n = 1 -> t.e.n = 2", "k = \"Named\" -> t.Named = {}",
      "c: 1 -> 2", "new: f.0 = true", 'gone: d = "gone"',
    })
    equal(config_changes.lines(config "a: 1.0", config "a: 1.0", {}), {})
    equal(config_changes.lines(config "a: {n: 1}", config "b: {n: 1}", {}), { "new: b.n = 1", "gone: a.n = 1" })
    local many = cbk.dict()
    for i = 1, 9 do many["k" .. i] = i end
    equal(config_changes.lines(cbk.dict { a = many }, cbk.dict { b = cbk.dict { a = many } }, { { "a", "b.a" } }),
      { "a -> b.a: k1, k2, k3, k4, k5, k6, … (9 fields)" })
  end)
end)

describe("the steps of an upgrade", function()
  local function steps(model, from, to)
    local out = {}
    for i, step in ipairs(upgrade.job(model, from, to).path) do out[i] = step.tgt end
    return table.concat(out, " ")
  end

  it("leap over no release that one can pass through", function()
    equal(steps("gpt2", "cs-2.2", "cs-2.5"), "cs-2.3 cs-2.4 cs-2.5")
    equal(steps("gpt2", "cs-1.8", "cs-2.0"), "cs-1.9 cs-2.0")
    equal(steps("bert", "cs-1.6", "cs-2.0"), "cs-1.7 cs-1.8 cs-1.9 cs-2.0")
    equal(steps("t5", "cs-1.7", "cs-1.9"), "cs-1.8 cs-1.9")
    assert(converters.route("gpt2", "cs-2.2", "cs-2.5").path.at_once, "cbk convert takes them at once")
  end)

  ---A config carried over, with a checkpoint of one tensor.
  local function run(model, from, to, config)
    local root = cbk.dict { model = cbk.dict { x = cbk.tensor { 1 } } }
    return upgrade.run({ checkpoint = { root = root } }, cbk.config.parse(config, "yaml"), upgrade.job(model, from, to))
  end

  it("do to the config what each release did", function()
    local mup = "model: {hidden_size: 8, filter_size: 16, num_heads: 2, num_hidden_layers: 2, scale_qk_dot_by_d: true, "
      .. "embeddings_scale: 2.0, output_logits_scale: 0.25}\n"
      .. "optimizer: {optimizer_type: AdamW, learning_rate: 0.1, adjust_learning_rate: {decoder_kernel: 0.5}}"
    local config = run("gpt2", "cs-2.2", "cs-2.5", mup).config
    local model = config.trainer.init.model
    equal(model.name, "gpt2")
    equal(model.mup_base_hidden_size, 4)
    equal(model.output_logits_alpha, 0.5)
    equal(model.output_logits_scale, nil)
    for name, from in pairs { gpt2 = "cs-1.8", bert = "cs-1.7" } do
      local old = "model: {hidden_size: 8, num_heads: 2}\ncsconfig: {a: 1}\nrunconfig: {num_act_servers: 1, keep_checkpoint_max: 5}"
      config = run(name, from, "cs-2.0", old).config
      equal(config.csconfig, nil)
      equal(config.runconfig, { max_checkpoints = 5 }, name)
    end
  end)

  it("show what was done to the config, not what looks like it", function()
    local reported = {}
    local function upgraded(from, to, config)
      reported = {}
      for _, part in ipairs(run("gpt2", from, to, config).parts) do
        for _, line in ipairs(part.lines) do reported[#reported + 1] = line:match "^config: (.*)" end
      end
      return table.concat(reported, "\n")
    end
    local run_options = "model: {use_rms_norm: true}\nrunconfig: {num_act_servers: 2, keep_checkpoint_max: 2}"
    equal(upgraded("cs-1.9", "cs-2.0", run_options), table.concat({
      "runconfig.keep_checkpoint_max -> runconfig.max_checkpoints",
      'model.use_rms_norm = true -> model.norm_type = "rmsnorm"', "gone: runconfig.num_act_servers = 2",
    }, "\n"))
    equal(upgraded("cs-2.0", "cs-2.1", "model: {precision_opt_level: 1}\nrunconfig: {}\noptimizer: {optimizer_type: AdamW, beta1: 0.5, "
      .. "beta2: 0.5, learning_rate: [{scheduler: Linear, steps: 1}]}"), table.concat({
      "model -> runconfig: precision_opt_level",
      "optimizer.learning_rate.0.steps -> optimizer.learning_rate.0.total_iters",
      "optimizer.beta1 -> optimizer.betas.0", "optimizer.beta2 -> optimizer.betas.1",
    }, "\n"))
    equal(upgraded("cs-2.2", "cs-2.3", "model: {a: 1, mixed_precision: true}\nrunconfig: {seed: 1, num_csx: 1, max_checkpoints: 1}"
      .. "\ntrain_input: {n: 1}\neval_input: {n: 1}\noptimizer: {optimizer_type: AdamW, eps: 1, "
      .. "log_summaries: true, learning_rate: [{scheduler: Linear, total_iters: 1}, {scheduler: Linear, total_iters: 1}]}"), table.concat({
      "runconfig -> trainer.init: seed", "runconfig -> trainer.init.backend.cluster_config: num_csx", "model -> trainer.init.model: a",
      "optimizer -> trainer.init.optimizer.AdamW: eps",
      "optimizer.learning_rate.0 -> trainer.init.schedulers.0.SequentialLR.schedulers.0.LinearLR: total_iters",
      "optimizer.learning_rate.1 -> trainer.init.schedulers.0.SequentialLR.schedulers.1.LinearLR: total_iters",
      "model.mixed_precision -> trainer.init.precision.enabled", "optimizer.log_summaries -> trainer.init.precision.log_loss_scale",
      "runconfig.max_checkpoints -> trainer.init.callbacks.1.KeepNCheckpoints.n", "train_input -> trainer.fit.train_dataloader: n",
      "eval_input -> trainer.fit.val_dataloader: n", "eval_input -> trainer.validate.val_dataloader: n",
      "eval_input -> trainer.validate_all.val_dataloaders: n",
      "optimizer.learning_rate.0.scheduler -> trainer.init.schedulers.0.SequentialLR.schedulers.0.LinearLR",
      "optimizer.learning_rate.1.scheduler -> trainer.init.schedulers.0.SequentialLR.schedulers.1.LinearLR",
      "optimizer.optimizer_type -> trainer.init.optimizer.AdamW",
      "optimizer.log_summaries = true -> trainer.init.callbacks.0.ComputeNorm = {}",
    }, "\n"))
  end)

  ---The last_epoch that an upgrade leaves, with such a step and such a last_epoch before, and what is said of it.
  local function last_epoch(from, step, last, accept)
    local root = cbk.dict { model = cbk.dict { x = cbk.tensor { 1 } }, global_step = step, lr_scheduler = cbk.dict { last_epoch = last } }
    local done = upgrade.run({ checkpoint = { root = root } }, cbk.config.parse("model: {hidden_size: 8}", "yaml"),
      upgrade.job("gpt2", from, "cs-2.5", { accept_missing = accept }))
    return done.root.lr_scheduler.last_epoch, done
  end

  it("leave the schedule's count where no step is known", function()
    for _, from in ipairs { "cs-1.8", "cs-1.9", "cs-2.0" } do
      raises("no data is stored for global_step", function() last_epoch(from, cbk.null, 5) end, "key")
      local last, done = last_epoch(from, cbk.null, 5, true)
      equal(last, 5, from)
      harness.is_true(upgrade.text(done):find("warning: no data is stored for global_step", 1, true), upgrade.text(done))
    end
    local function said(root)
      return upgrade.text(upgrade.run({ checkpoint = { root = root } }, cbk.config.parse("model: {hidden_size: 8}", "yaml"),
        upgrade.job("gpt2", "cs-1.9", "cs-2.5", {})))
    end
    local weights = cbk.dict { model = cbk.dict { x = cbk.tensor { 1 } } }
    harness.lacks(said(weights), "last_epoch")
    harness.has(said(weights), "nothing to repair")
    weights.lr_scheduler = cbk.dict { last_epoch = 5 }
    harness.has(said(weights), "last_epoch: cannot be repaired without a global_step")
    local root = cbk.dict { model = cbk.dict(), global_step = cbk.null, lr_scheduler = cbk.dict { last_epoch = 5 } }
    local job = conversion.job("gpt2", "cs-1.9", "cs-2.0")
    converters.convert.config(job, cbk.config.parse("model: {hidden_size: 8}", "yaml"))
    equal(converters.convert.checkpoint(job, root).lr_scheduler.last_epoch, 5)
  end)

  it("give the schedule the step in the kind that its count has", function()
    local function tensor(number, dtype, shape) return cbk.full(shape or {}, number, { dtype = dtype }) end
    for _, step in ipairs { 100, cbk.float(100), tensor(100, "int64", { 1 }), tensor(100, "float32"), tensor(100, "int32") } do
      for _, last in ipairs { 0, 100 } do
        equal(last_epoch("cs-1.8", step, last), 100)
        local float = last_epoch("cs-1.9", step, tensor(last, "float32"))
        equal({ float.dtype, #float:shape(), float:item() }, { "float32", 0, 100 })
        equal(last_epoch("cs-1.9", step, tensor(last, "int64", { 1 })):tolist(), { 100 })
      end
    end
    for text, step in pairs { ["100.5"] = 100.5, nan = 0 / 0, inf = math.huge, ["1e+300"] = 1e300 } do
      for _, last in ipairs { 0, tensor(0, "int64") } do
        local problem = ("global_step is %s: expected a whole number"):format(text)
        raises(problem, function() last_epoch("cs-1.8", cbk.float(step), last) end, "value")
        raises("global_step is", function() last_epoch("cs-1.8", tensor(step, "float64"), last) end, "value")
      end
    end
  end)

  it("keep which states a run loads", function()
    local config = run("gpt2", "cs-2.0", "cs-2.5", "model: {hidden_size: 8}\nrunconfig: {is_pretrained_checkpoint: true}").config
    equal(config.trainer.init.callbacks[1], { LoadCheckpointStates = { load_checkpoint_states = { "model", "dataloader" } } })
  end)

  it("are reported if one of several fails", function()
    raises("cs-2.1 -> cs-2.2: runconfig.use_cs_grad_accum=5", function()
      run("gpt2", "cs-1.8", "cs-2.5", "model: {hidden_size: 8}\nrunconfig: {use_cs_grad_accum: 5}")
    end, "config")
    raises("cs-1.9 -> cs-2.0: unable to find", function()
      local root = cbk.dict { model = cbk.dict { { "model.lm_head.weight", conversion.counted({ 2, 8 }, 0) } } }
      local t5 = cbk.config.parse("model: {d_model: 8, src_vocab_size: 2}", "yaml")
      upgrade.run({ checkpoint = { root = root } }, t5, upgrade.job("t5", "cs-1.7", "cs-2.0"))
    end)
  end)

  it("report a new config that names the old checkpoint", function()
    local old = "model: {hidden_size: 8}\noptimizer: {optimizer_type: AdamW, learning_rate: 0.1}\ntrain_input: {n: 1}\neval_input: {n: 1}\n"
      .. "runconfig: {checkpoint_path: old.mdl, autoload_last_checkpoint: true, model_dir: runs/a}"
    local function reported(to, config)
      local part = upgrade.stale(run("gpt2", "cs-2.1", to, config).config, "new.mdl")
      return part and table.concat(part.warnings, "\n")
    end
    equal(reported("cs-2.2", old), [[
runconfig.checkpoint_path is still "old.mdl"; the new checkpoint is 'new.mdl'
runconfig.autoload_last_checkpoint is true: the run would load the last checkpoint in its model_dir 'runs/a', not 'new.mdl']])
    equal(reported("cs-2.3", old), [[
trainer.fit.ckpt_path is still "old.mdl"; the new checkpoint is 'new.mdl'
trainer.validate.ckpt_path is still "old.mdl"; the new checkpoint is 'new.mdl'
trainer.validate_all.ckpt_paths is still "old.mdl"; the new checkpoint is 'new.mdl'
trainer.init.checkpoint.autoload_last_checkpoint is true: the run would load the last checkpoint in its model_dir 'runs/a', not 'new.mdl']])
    equal(reported("cs-2.3", "model: {hidden_size: 8}\nrunconfig: {checkpoint_path: null, autoload_last_checkpoint: false}"), nil)
  end)

  it("take the states of data loaders over on the way from 1.9 to 2.0", function()
    local folder = harness.temp_dir()
    cbk.fs.write(cbk.fs.join(folder, "data_iter_checkpoint_state_file_global"), "5")
    cbk.fs.write(cbk.fs.join(folder, "data_iter_state_file_worker_0_step_5.txt"), "40")
    local done = run("gpt2", "cs-1.8", "cs-2.0", "model: {hidden_size: 8}\ntrain_input: {data_processor: GptHDF5MapDataProcessor}\n"
      .. "cerebras: {save_iter_state_path: '" .. folder .. "'}")
    equal(done.root.dataloader, { samples_streamed = 40, seed = 0 })
    equal(done.config.cerebras, nil)
    local reported = {}
    for _, part in ipairs(done.parts) do
      for _, line in ipairs(part.lines) do reported[line] = part.title end
    end
    equal(reported["dataloader: 40 samples streamed"], "cs-1.9 -> cs-2.0")
  end)
end)

describe("names of weights", function()
  ---An old checkpoint with such names, of one element each.
  local function old_file(names, version)
    local model = cbk.dict()
    for _, name in ipairs(names) do
      model[name] = name == "classifier.weight" and cbk.full({ 2, 768 }, 1) or cbk.tensor { 1 }
      local module = name:match "^(.*%.dense)%.weight$" or name:match "^(.*LayerNorm)%.weight$" or name:match "^(cl[%w_.]*)%.weight$"
      if module then model[module .. ".bias"] = module == "classifier" and cbk.tensor { 1, 2 } or cbk.tensor { 1 } end
    end
    local format = version and "cerebras-h5" or "torch-zip"
    return { checkpoint = { root = cbk.dict { model = model }, format = format, version = version, path = "x.mdl" } }
  end
  local of_1_6 = {
    ["bert"] = {
      "bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight", "bert.embeddings.LayerNorm.weight",
      "bert.embeddings.token_type_embeddings.weight", "bert.pooler.dense.weight", "cls.predictions.transform.dense.weight",
      "cls.predictions.transform.LayerNorm.weight", "cls.seq_relationship.weight",
    },
    ["bert-summarization"] = {
      "bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight", "bert.embeddings.LayerNorm.weight",
      "bert.embeddings.token_type_embeddings.weight", "classifier.weight",
    },
    ["t5"] = {
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "encoder.final_layer_norm.weight",
      "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "decoder.final_layer_norm.weight",
      "encoder_token_embedding.weight", "decoder_token_embedding.weight",
    },
  }
  local of_1_7 = {
    ["bert"] = { "bert_encoder.embedding_layer.word_embeddings.weight", "bert_encoder.transformer_encoder.layers.0.norm1.weight" },
    ["t5"] = { "encoder.layers.0.norm1.weight", "decoder_embeddings.word_embeddings.weight", "encoder_embeddings.word_embeddings.weight" },
  }
  local config = cbk.dict { model = cbk.dict { num_heads = 2 } }

  it("distinguish 1.6 from 1.7, in H5 files and in pickles", function()
    for release_of, list in pairs { ["1.6"] = of_1_6, ["1.7"] = of_1_7 } do
      for model, names in pairs(list) do
        local found, evidence = upgrade.detect(old_file(names, "0.1"), config, model, "cs-2.5")
        equal(found, release_of, model)
        equal(release.line(evidence[#evidence]), "names of weights: " .. release_of)
      end
    end
    for model, names in pairs(of_1_6) do equal(upgrade.detect(old_file(names), config, model, "cs-2.5"), "1.6", model) end
  end)

  it("are those of a step that 1.6 -> 1.7 drops, but not before the files of data loaders are compared with it", function()
    local folder = harness.temp_dir()
    cbk.fs.write(cbk.fs.join(folder, "data_iter_checkpoint_state_file_global"), "5")
    cbk.fs.write(cbk.fs.join(folder, "data_iter_state_file_worker_0_step_5.txt"), "40")
    local sizes = { num_heads = 2, hidden_size = 2, vocab_size = 3, num_hidden_layers = 1, filter_size = 4, max_position_embeddings = 4 }
    local with_states = cbk.dict { model = sizes, train_input = { data_processor = "GptHDF5DataProcessor" },
      cerebras = { save_iter_state_path = folder } }
    local old = old_file(of_1_6["bert"], "0.1")
    local model = old.checkpoint.root.model
    for _, one in ipairs(classes.tensors(cbk.dict(sizes), "bert", "cs-1.6")) do
      if not one.optional then model[one.key] = conversion.counted(classes.shape(one), 0) end
    end
    for step, samples in pairs { [5] = 40, [100] = false } do
      old.checkpoint.root.global_step = step
      local function run() return upgrade.run(old, with_states, upgrade.job("bert", "cs-1.6", "cs-2.5")).root end
      if samples then
        equal(run().dataloader.all_worker_states[1].samples_streamed, samples)
      else
        raises("are of step 5, but the checkpoint is of step 100", run, "value")
      end
    end
  end)

  it("of another release or model are refused", function()
    local function check(model, to, names)
      return weight_names.check(model, to, config, old_file(names).checkpoint.root, "--model and --src-fmt")
    end
    raises("13 of 13 weight names are unknown in bert cs-2.5: bert.embeddings.word_embeddings.weight", function()
      check("bert", "cs-2.5", of_1_6["bert"])
    end, "key")
    raises("they look like those of bert of cs-1.6", function() check("bert", "cs-2.0", of_1_6["bert"]) end, "key")
    local gpt2 = {
      "model.embedding_layer.position_embeddings.embed.weight", "model.transformer_decoder.layers.0.norm1.weight",
      "model.transformer_decoder.layers.0.norm1.weight_mask",
    }
    raises("gpt2 of cs-2.5", function() check("bert", "cs-2.5", gpt2) end, "key")
    raises("has no weights", function()
      upgrade.identity({ root = old_file({}).checkpoint.root }, upgrade.job("gpt2", "cs-1.7", "cs-2.5"), {})
    end, "key")
    raises("fit none of the possible releases", function()
      upgrade.detect(old_file({ gpt2[2] }, "0.1"), config, "bert", "cs-2.5")
    end, "convert")
    raises("no known model", function() check("gpt2", "cs-2.5", { "x" }) end, "key")
    equal(check("gpt2", "cs-2.5", gpt2), nil)
    gpt2[4] = "model.adapter.weight"
    equal(check("gpt2", "cs-2.5", gpt2),
      "1 of 4 weight names are unknown in gpt2 cs-2.5: model.adapter.weight; they are kept as they are")
  end)
end)

describe("cbk upgrade", function()
  it("knows which releases there are, and which it can write for", function()
    local folder = harness.temp_dir()
    for option, text in pairs {
      ["--to=cs-9.9"] = "--to cs-9.9: 'cs-9.9' is not a release; did you mean 'cs-2.9' or 'cs-2.8' or 'cs-2.7'? known are cs-1.6 … cs-2.9",
      ["--to=2.5"] = "did you mean 'cs-2.5'? known are", ["--to=hf"] = "--to hf: 'hf' is not a release; known are cs-1.6",
      ["--to=cs-1.9"] = "--to cs-1.9: cbk writes H5 0.4 and later", ["--to=cs-1.10"] = "'cs-1.10' is not a release",
    } do
      local code, _, problem = harness.cbk(folder, "upgrade", "--model", "gpt2", "--config", "c.yaml", "x.mdl", option)
      equal(code, 2, option)
      harness.is_true(problem:find(text, 1, true), problem)
    end
    local _, _, problem = harness.cbk(folder, "upgrade", "--model", "gpt2", "--config", "c", "x", "--to", "cs-2.5", "--from", "cs-9.9")
    harness.is_true(problem:find("--from cs-9.9: 'cs-9.9' is not a release", 1, true), problem)
  end)

  it("names the command that converts from Hugging Face", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    cbk.config.save(config, dir .. "/config.json")
    cbk.create(dir .. "/m.safetensors", { root = root }):commit()
    local code, _, problem = harness.cbk(dir, "upgrade", "m.safetensors", "--to", "cs-2.5")
    equal({ code, problem }, { 1, "cbk: './config.json' is a config of Hugging Face; upgrade is for checkpoints of the Model Zoo; "
      .. "use `cbk convert m.safetensors --to cs-2.5`\n" })
  end)

  it("names a config that describes no model", function()
    local folder = harness.temp_dir()
    for text, why in pairs {
      [""] = "the config is empty", ["- 1"] = "the config should be a map of fields, found a list",
      ["a: 1"] = "expected a config of the Model Zoo, found no section 'model'",
      ["model: {}"] = "the model section of the config is empty", ["trainer: {}"] = "the config has a 'trainer' section without 'init'",
    } do
      cbk.fs.write(folder .. "/c.yaml", text .. "\n", { overwrite = true })
      local code, _, problem = harness.cbk(folder, "upgrade", "--model", "gpt2", "--config", "c.yaml", "x.mdl", "--to", "cs-2.5")
      equal({ code, problem }, { 1, ("cbk: 'c.yaml': %s\n"):format(why) })
    end
  end)
end)

describe("an upgrade as another model", function()
  it("is refused if all fields are of another one, also where both have the same weight names", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "gpt2", vocab_size = 8, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4 },
      dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    equal((harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.2", "-o", "new")), 0)
    for _, case in ipairs { { "llama", 2 }, { "mistral", 2 }, { "santacoder", 2 }, { "gptj", 2 }, { "gpt-neox", 2 }, { "gpt2", 0 } } do
      local code, out, problem = harness.cbk(dir, "upgrade", "--model", case[1], "--config", "new/config_to_cs-2.2.yaml",
        "new/m_to_cs-2.2.mdl", "--to", "cs-2.5", "--yes", "-o", case[1])
      equal(code, case[2], out .. problem)
      if code ~= 0 then
        local why = ("is not of %s: the config does not fit %s: "):format(case[1], case[1]) -- by the defaults of fields, too
        harness.is_true(problem:find(why, 1, true) ~= nil and problem:find("fit --model gpt2", 1, true) ~= nil, problem)
      end
      equal(cbk.fs.exists(("%s/%s"):format(dir, case[1])), code == 0)
    end
  end)

  it("is refused if the config has fields of others, and weights are missing", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "gpt_neox", vocab_size = 8, hidden_size = 8, num_attention_heads = 4, num_hidden_layers = 1,
      intermediate_size = 16, max_position_embeddings = 8, rotary_pct = 1 }, dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    local made, _, why = harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.1", "-o", "new")
    equal(made, 0, why)
    local function upgraded(model, config)
      return harness.cbk(dir, "upgrade", "--model", model, "--config", config, "new/m_to_cs-2.1.mdl", "--to", "cs-2.5", "--dry-run")
    end
    local code, _, problem = upgraded("gpt2", "new/config_to_cs-2.1.yaml")
    equal(code, 2)
    harness.is_true(problem:find("this run is not of gpt2: ", 1, true), problem)
    code, _, problem = upgraded("gpt-neox", "new/config_to_cs-2.1.yaml")
    equal(code, 0, problem)
    local config = cbk.config.load(dir .. "/new/config_to_cs-2.1.yaml")
    config.model.num_heads = 8
    cbk.config.save(config, dir .. "/heads.yaml")
    code, _, problem = upgraded("gpt-neox", "heads.yaml")
    equal(code, 1)
    harness.is_true(problem:find("the config contradicts the one in the checkpoint's __metadata__", 1, true), problem)
  end)

  it("is refused if weights and config are of a third", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "llama", vocab_size = 8, hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1,
      intermediate_size = 16 }, dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    equal((harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.4", "-o", "new")), 0)
    local function upgraded(model)
      return harness.cbk(dir, "upgrade", "--model", model, "--config", "new/config_to_cs-2.4.yaml", "new/m_to_cs-2.4.mdl", "--to", "cs-2.5",
        "--dry-run")
    end
    local code, _, problem = upgraded "gpt2"
    equal(code, 2)
    equal(problem:match "^cbk: this run is not of gpt2: .*; all its fields and the weight names fit ([^\n]*)",
      "--model llama or mistral or phi3")
    equal((upgraded "llama"), 0)
  end)
end)

describe("the plan of an upgrade", function()
  local dir, config, root
  local function run(...)
    dir = harness.temp_dir()
    conversion.warnings(function()
      config, root = conversion.run("bert", "hf", "cs-1.6", tiny.model(tiny.newest_ways().bert))
    end)
    root.global_step = 5
    cbk.config.save(config, dir .. "/p.yaml")
    cbk.create(dir .. "/a.mdl", { root = root }):commit { progress = false }
    local code, stdout, stderr = harness.cbk(dir, "upgrade", "--model", "bert", "--from", "cs-1.6", "--to", "cs-2.4", "--config", "p.yaml",
      "a.mdl", ...)
    equal(code, 0, stderr)
    return stdout, stderr
  end

  it("folds the numbers of layers, not those of modules in one", function()
    local stdout = run "--dry-run"
    for _, name in ipairs { "intermediate.dense.weight -> bert_encoder.transformer_encoder.layers.N.ffn.ffn.0.linear_layer.weight",
      " bert.encoder.layer.N.output.dense.weight -> bert_encoder.transformer_encoder.layers.N.ffn.ffn.1.linear_layer.weight" } do
      harness.is_true(stdout:find(name, 1, true), stdout)
    end
  end)

  it("warns on stderr where nobody is asked", function()
    local lost = "warning: cs-1.6 -> cs-1.7 keeps the model only; left out: global_step"
    for option, is_asked in pairs { ["--dry-run"] = true, ["-y"] = false } do
      local stdout, stderr = run(option)
      equal({ stdout:find(lost, 1, true) ~= nil, stderr:find(lost, 1, true) ~= nil }, { is_asked, not is_asked }, stdout .. stderr)
    end
  end)
end)

describe("cbk upgrade without options", function()
  it("finds the model and the config, and states of data loaders beside the config", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.newest_ways().gpt2)
    cbk.fs.mkdir(dir .. "/hf")
    cbk.config.save(config, dir .. "/hf/config.json")
    cbk.create(dir .. "/hf/model.safetensors", { root = root }):commit()
    local function runs(...)
      local status, out, err = harness.cbk(dir, ...)
      equal(status, 0, err)
      return out
    end
    runs("convert", "hf", "--to", "cs-1.9", "-o", "run", "-q")
    local path = dir .. "/run/config_to_cs-1.9.yaml"
    local old = cbk.config.load(path)
    old.train_input, old.cerebras = cbk.dict { data_processor = "GptHDF5MapDataProcessor" }, cbk.dict { save_iter_state_path = "states" }
    cbk.config.save(old, path, { overwrite = true })
    cbk.fs.mkdir(dir .. "/run/states")
    cbk.fs.write(dir .. "/run/states/data_iter_checkpoint_state_file_global", "5")
    cbk.fs.write(dir .. "/run/states/data_iter_state_file_worker_0_step_5.txt", "40")
    local out = runs("upgrade", "run/hf_to_cs-1.9.mdl", "--to", "CS-2.2", "-y")
    harness.has(out, "Found: --model gpt2 --config run/config_to_cs-1.9.yaml\nrun/hf_to_cs-1.9.mdl is of release 1.9\n")
    equal(cbk.open(dir .. "/run/hf_to_cs-1.9_to_cs-2.2.mdl").root.dataloader.samples_streamed, 40)
    runs("convert", "run/hf_to_cs-1.9.mdl", "--model", "GPT2", "--from", "cs-1.9", "--to", "cs-2.0", "--config", path, "-o", "new", "-q")
    equal(cbk.open(dir .. "/new/hf_to_cs-1.9_to_cs-2.0.mdl").root.dataloader.samples_streamed, 40)
  end)

  it("takes the config in the checkpoint where there is no file", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "gpt2", vocab_size = 8, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4 },
      dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    equal((harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.2", "-o", "run")), 0)
    cbk.fs.remove(dir .. "/run/config_to_cs-2.2.yaml")
    for _, more in ipairs { {}, { "--dry-run" }, { "--model", "gpt2" } } do
      local code, out, err = harness.cbk(dir, "upgrade", "run/m_to_cs-2.2.mdl", "--to", "cs-2.5", "-y", "--overwrite", unpack(more))
      equal({ code, err }, { 0, "" })
      harness.has(out, "Found: --model gpt2 and the config in the checkpoint\n")
      harness.has(out, "and run/config_to_cs-2.5.yaml\n")
    end
    equal(cbk.config.load(dir .. "/run/config_to_cs-2.5.yaml").trainer.init.model.hidden_size, 8)
    equal((harness.cbk(dir, "copy", "run/m_to_cs-2.2.mdl", "run/bare.mdl", "--exclude", "__metadata__", "--h5-version", "0.4")), 0)
    cbk.fs.remove(dir .. "/run/config_to_cs-2.5.yaml")
    local code, _, err = harness.cbk(dir, "upgrade", "run/bare.mdl", "--model", "gpt2", "--to", "cs-2.5", "-y")
    equal({ code, err },
      { 2, "cbk: cannot detect the config of 'run/bare.mdl': there is no YAML config beside it; name it with --config\n" })
  end)

  it("writes the checkpoint of a folder into it, beside the config", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "gpt2", vocab_size = 8, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4 },
      dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    equal((harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-2.2", "-o", "run")), 0)
    local code, out, err = harness.cbk(dir, "upgrade", "run", "--to", "cs-2.5", "-y")
    equal({ code, err }, { 0, "" })
    harness.has(out, "Checkpoint saved to run/run_to_cs-2.5.mdl\nConfig saved to run/config_to_cs-2.2_to_cs-2.5.yaml\n")
  end)

  it("warns of a config that lacks what its conversion to Hugging Face needs", function()
    local dir = harness.temp_dir()
    cbk.config.save(cbk.dict { model_type = "gpt2", vocab_size = 8, n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4 },
      dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "m.safetensors")), 0)
    equal((harness.cbk(dir, "convert", "m.safetensors", "--to", "cs-1.9", "-o", "run")), 0)
    local advice = "add 'dropout_rate' with the rate of the training, such as 0.1, or 0.0 (no dropout)"
    for _, command in ipairs { "upgrade", "convert" } do
      local code, _, err = harness.cbk(dir, command, "run/m_to_cs-1.9.mdl", "--to", "cs-2.5", "-o", command,
        command == "upgrade" and "-y" or nil)
      equal({ code, err }, { 0, "warning: the new config lacks trainer.init.model.dropout_rate, without which cbk cannot convert it to hf: "
        .. advice .. "\n" })
      code, _, err = harness.cbk(dir, "convert", command .. "/m_to_cs-1.9_to_cs-2.5.mdl", "--to", "hf")
      equal({ code, err }, { 1, ("cbk: '%s/config_to_cs-1.9_to_cs-2.5.yaml' lacks trainer.init.model.dropout_rate, which gpt2 needs; %s\n")
        :format(command, advice) })
    end
  end)
end)
