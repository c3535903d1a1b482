-- Makes the files that the tasks of a first use read: cbk run tests/firstuse/inputs.lua FOLDER

local cbk = require "cbk"

local folder = arg[1]
local seed = 0

---@param shape integer[]
---@param scale? number
local function random(shape, scale)
  seed = seed + 1
  return cbk.randn(shape, { seed = seed, std = scale or 0.02 })
end

---@param path string
---@param root Dict
local function save(path, root) cbk.create(cbk.fs.join(folder, path), { root = root }):commit() end

-- --- a GPT-2 of the Model Zoo in training

local WIDTH, LAYERS, VOCABULARY = 16, 12, 64

---@return Dict
local function zoo_model()
  local model = cbk.dict()
  local function linear(name, rows, columns)
    model[name .. ".weight"], model[name .. ".bias"] = random { rows, columns }, random { rows }
  end
  local function norm(name)
    model[name .. ".weight"], model[name .. ".bias"] = cbk.full({ WIDTH }, 1) + random { WIDTH }, random { WIDTH }
  end
  model["embedding_layer.word_embeddings.weight"] = random { VOCABULARY, WIDTH }
  model["embedding_layer.position_embeddings.embed.weight"] = random { 32, WIDTH }
  for layer = 0, LAYERS - 1 do
    local place = ("transformer_decoder.layers.%d."):format(layer)
    for _, part in ipairs { "q", "k", "v", "output" } do linear(("%sself_attn.proj_%s_dense_layer"):format(place, part), WIDTH, WIDTH) end
    norm(place .. "norm1")
    norm(place .. "norm3")
    linear(place .. "ffn.ffn.0.linear_layer", 4 * WIDTH, WIDTH)
    linear(place .. "ffn.ffn.1.linear_layer", WIDTH, 4 * WIDTH)
  end
  norm "transformer_decoder.norm"
  model["lm_head.weight"] = random { VOCABULARY, WIDTH }
  return model
end

---@param model Dict
---@param step integer
local function training_state(model, step)
  local rate = 6e-4 * (1 - step / 10000)
  local decayed, plain, states = cbk.list(), cbk.list(), cbk.dict()
  local function add(name, number)
    local list = #model[name]:shape() > 1 and decayed or plain
    list[#list + 1] = number
    local weight = model[name]
    states[number] = cbk.dict { { "exp_avg", weight * 0.01 }, { "exp_avg_sq", weight * weight }, { "step", cbk.tensor(step) } }
  end
  local number = 0
  for _, is_decayed in ipairs { true, false } do -- PyTorch counts group by group
    for name, weight in cbk.items(model) do
      if (#weight:shape() > 1) == is_decayed then
        add(name, number)
        number = number + 1
      end
    end
  end
  local function group(decay, params)
    return cbk.dict { { "lr", rate }, { "betas", cbk.list { 0.9, 0.95 } }, { "eps", 1e-8 }, { "weight_decay", decay },
      { "params", params } }
  end
  return cbk.dict {
    { "model", model },
    { "optimizer", cbk.dict { { "state", states }, { "param_groups", cbk.list { group(0.1, decayed), group(0, plain) } } } },
    { "schedulers", cbk.list { cbk.dict { { "last_epoch", step } } } },
    { "grad_scaler", cbk.dict { { "scale", cbk.tensor(65536 * step / 1000) }, { "growth_tracker", 17 } } },
    { "global_step", step },
  }
end

---Another step of the same run, in which one layer has become NaN.
---@param model Dict
local function trained_on(model)
  local out = cbk.dict()
  for name, weight in cbk.items(model) do out[name] = weight + random(weight:shape(), 0.001) end
  local broken = "transformer_decoder.layers.7.self_attn.proj_q_dense_layer.weight"
  out[broken] = cbk.cat({ out[broken]:slice(0, 0, WIDTH - 1), cbk.full({ 1, WIDTH }, 0 / 0) }, 0)
  return out
end

local model = zoo_model()
cbk.fs.mkdir(cbk.fs.join(folder, "run"))
save("run/checkpoint_1000.mdl", training_state(model, 1000))
save("run/checkpoint_2000.mdl", training_state(trained_on(model), 2000))

---The time of a file's last change, which `cbk watch` shows.
local function set_time(path, time)
  assert(os.execute(("touch -d '%s' '%s'"):format(time, cbk.fs.join(folder, path))) == 0)
end

set_time("run/checkpoint_1000.mdl", "2026-11-28 10:00")
set_time("run/checkpoint_2000.mdl", "2026-11-28 12:30")

-- --- models of Hugging Face

local LLAMA = [[{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 64,
  "hidden_size": 16,
  "intermediate_size": 40,
  "num_hidden_layers": 12,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "tie_word_embeddings": false,
  "torch_dtype": "float32"
}
]]

local GPT2 = [[{
  "architectures": ["GPT2LMHeadModel"],
  "model_type": "gpt2",
  "vocab_size": 64,
  "n_positions": 32,
  "n_embd": 16,
  "n_layer": 12,
  "n_head": 4,
  "activation_function": "gelu_new",
  "resid_pdrop": 0.1,
  "embd_pdrop": 0.1,
  "attn_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05
}
]]

---A folder with a config and random weights of its model.
local function make_model(name, config)
  local place = cbk.fs.join(folder, name)
  cbk.fs.mkdir(place)
  cbk.fs.write(cbk.fs.join(place, "config.json"), config)
  local command = ("'%s' new '%s/config.json' -o '%s/model.safetensors' -q"):format(cbk.fs.program(), place, place)
  assert(os.execute(command .. " >/dev/null") == 0, command)
end

make_model("llama", LLAMA)
make_model("gpt2", GPT2)
cbk.fs.write(cbk.fs.join(folder, "no_vocab.json"), (LLAMA:gsub('  "vocab_size": 64,\n', "")))
