-- cbk demo: convert a small GPT-2 to the Model Zoo and back

local cbk = require "cbk"
local cli = require "cbk.cli"

local parser = cli.parser("demo", "Convert a small GPT-2 to Cerebras and back, then train one, and let it write.", [[
Each command is printed before its output, as one would type it. The exit code is 0 only if all of
them succeed, and what comes back equals what went in. It takes about a minute, most of it for training.

examples:
  cbk demo
  cbk demo --dir demo]])
parser:option("--dir", "keep the files in this new folder (default: a temporary one, removed at the end)"):argname "DIR"
local args = parser:parse()

local CONFIG = {
  { "model_type", "gpt2" }, { "activation_function", "gelu_new" },
  { "vocab_size", 4096 }, { "n_positions", 256 }, { "n_embd", 128 }, { "n_layer", 4 }, { "n_head", 4 }, { "n_inner", cbk.null },
  { "embd_pdrop", 0.1 }, { "attn_pdrop", 0.1 }, { "resid_pdrop", 0.1 }, { "layer_norm_epsilon", 1e-5 },
  { "initializer_range", 0.02 }, { "scale_attn_weights", true }, { "scale_attn_by_inverse_layer_idx", false },
  { "reorder_and_upcast_attn", false }, { "tie_word_embeddings", true },
}

-- --- the model

--- A GPT-2 as Hugging Face saves it; random weights, always the same.
local function make_model(config)
  local width, positions = config.n_embd, config.n_positions
  local root, seed = cbk.dict({}, "ordereddict"), 0
  local function normal(key, shape)
    seed = seed + 1
    root[key] = cbk.randn(shape, { std = config.initializer_range, seed = seed })
  end
  local function norm(key)
    root[key .. ".weight"] = cbk.full({ width }, 1)
    root[key .. ".bias"] = cbk.full({ width }, 0)
  end
  local function linear(key, inputs, outputs) -- Conv1D: inputs first
    normal(key .. ".weight", { inputs, outputs })
    normal(key .. ".bias", { outputs })
  end
  normal("transformer.wte.weight", { config.vocab_size, width })
  normal("transformer.wpe.weight", { positions, width })
  for layer = 0, config.n_layer - 1 do
    local prefix = ("transformer.h.%d."):format(layer)
    norm(prefix .. "ln_1")
    root[prefix .. "attn.bias"] = cbk.tril({ 1, 1, positions, positions }, { dtype = "uint8" })
    root[prefix .. "attn.masked_bias"] = cbk.full({}, -1e4)
    linear(prefix .. "attn.c_attn", width, 3 * width)
    linear(prefix .. "attn.c_proj", width, width)
    norm(prefix .. "ln_2")
    linear(prefix .. "mlp.c_fc", width, 4 * width)
    linear(prefix .. "mlp.c_proj", 4 * width, width)
  end
  norm "transformer.ln_f"
  root["lm_head.weight"] = root["transformer.wte.weight"] -- tied
  return root
end

-- --- running commands

local function quoted(word)
  if word:find "^[%w_./:=+,-]+$" then return word end
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

--- Runs a command of cbk in the folder, as a user would: shows the line, then what it prints. True when it exits with 0.
local function run(folder, ...)
  local words = {}
  for i, word in ipairs { ... } do words[i] = quoted(word) end
  local line = table.concat(words, " ")
  print("\n$ cbk " .. line)
  io.stdout:flush()
  return os.execute(("cd %s && %s %s"):format(quoted(folder), quoted(cbk.fs.program()), line)) == 0
end

local function must(worked)
  if not worked then cbk.fail("value", "this command of the demo failed") end
end

--- There and back.
local function convert(folder)
  local config = cbk.dict(CONFIG)
  local source = cbk.fs.join(folder, "gpt2")
  cbk.fs.mkdir(source)
  cbk.create(cbk.fs.join(source, "pytorch_model.bin"), { root = make_model(config) }):commit()
  cbk.config.save(config, cbk.fs.join(source, "config.json"), { indent = 2 })
  print(("A small GPT-2 with random weights, in %s: config.json, pytorch_model.bin (PyTorch's zip format)"):format(source))

  must(run(folder, "ls", "gpt2/pytorch_model.bin"))
  must(run(folder, "convert", "--model", "gpt2", "--src-fmt", "hf", "--tgt-fmt", "cs-2.5", "--config", "gpt2/config.json",
    "gpt2/pytorch_model.bin", "--output-dir", "cerebras", "--no-progress-bar"))
  local converted = "cerebras/pytorch_model_to_cs-2.5.mdl"
  must(run(folder, "ls", converted))
  must(run(folder, "show", converted, "model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight"))
  must(run(folder, "convert", "--model", "gpt2", "--src-fmt", "cs-2.5", "--tgt-fmt", "hf", "--config",
    "cerebras/config_to_cs-2.5.yaml", converted, "--output-dir", "back", "--no-progress-bar"))
  local equal = run(folder, "diff", "gpt2/pytorch_model.bin", "back/pytorch_model_to_cs-2.5_to_hf")
  print(equal and "\nWhat came back equals what went in." or "\nWhat came back differs from what went in.")
  return equal
end

local HERE = cbk.fs.dirname(debug.getinfo(1, "S").source:sub(2))

--- A run of the text that comes with cbk: trained, converted, evaluated on both sides, and asked for a text.
local function train(folder)
  print "\nA run of 300 steps on two plays of Shakespeare, with the params.yaml of the help page on training."
  cbk.fs.write(cbk.fs.join(folder, "params.yaml"), cbk.fs.read(cbk.fs.join(HERE, "examples", "params.yaml")))
  must(run(folder, "make-data", "-o", "data", "--max-seq-length", "64"))
  must(run(folder, "train", "params.yaml", "--no-progress-bar"))
  must(run(folder, "convert", "run/checkpoint_300.mdl", "--to", "hf", "-o", "trained", "--no-progress-bar"))
  must(run(folder, "eval", "params.yaml", "--no-progress-bar"))
  must(run(folder, "eval", "params.yaml", "--checkpoint", "trained/checkpoint_300_to_hf", "--no-progress-bar"))
  must(run(folder, "generate", "run/checkpoint_300.mdl", "--prompt", "My lord, ", "--temperature", "0.8", "--max-tokens", "55"))
end

local function demo(folder)
  local is_equal = convert(folder)
  train(folder)
  return is_equal
end

local folder = args.dir
if folder and cbk.fs.exists(folder) then cbk.fail("exists", ("'%s' exists already"):format(folder)) end
if folder then cbk.fs.mkdir(folder) else folder = cbk.fs.temp_dir() end
local ok, result = pcall(demo, cbk.fs.absolute(folder))
if not args.dir then cbk.fs.remove(folder, { recursive = true }) end
if not ok then error(result, 0) end
return result and 0 or 1
