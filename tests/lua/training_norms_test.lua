-- The callback ComputeNorm: norms of weights and gradients in the records of a run.

local cbk = require "cbk"
local harness = require "harness"
local training_data = require "training_data"

local describe, it, equal, near = harness.describe, harness.it, harness.equal, harness.near

local RATE = 0.5

local function rows_of(dir)
  local out = {}
  for line in io.lines(dir .. "/run/metrics.jsonl") do
    local row = cbk.parse_json(line)
    if row.loss then out[#out + 1] = row end
  end
  return out
end

local function value(row, name) return tonumber(tostring(assert(row[name], name))) end

---The 2-norm of a function of each weight.
local function norm(tensors, of)
  local sum = 0
  for name, tensor in cbk.items(tensors) do
    local one = of(name, tensor:to "float64")
    sum = sum + (one and one:stats().norm ^ 2 or 0)
  end
  return math.sqrt(sum)
end

--- Names of weights that have another name, too.
local ALSO = { ["lm_head.weight"] = true, ["ln_f.weight"] = true, ["ln_f.bias"] = true }

describe("ComputeNorm", function()
  it("records the norms of the model and of its layers, which the change of the weights has", function()
    local dir = harness.temp_dir()
    training_data.write(dir .. "/data", 14, training_data.LENGTH, training_data.WORDS)
    local text = training_data.TRAINER:gsub("      AdamW:.-    precision:\n.-    loop:", ([[
      SGD:
        learning_rate: %g
        momentum: 0.0
    callbacks:
    - ComputeNorm: {}
    precision:
      fp16_type: float16
      loss_scaling_factor: 8
    loop:]]):format(RATE)):gsub("steps: 4\n", "steps: 1\n      save_initial_checkpoint: true\n"):gsub("log_steps: 3", "log_steps: 1")
    cbk.fs.write(dir .. "/params.yaml", text)
    local status, _, err = harness.cbk(dir, "train", "params.yaml", "--max-steps", "2")
    assert(status == 0, err)
    equal(err:find("ComputeNorm", 1, true), nil)
    for step, row in ipairs(rows_of(dir)) do
      local before = cbk.open(dir .. ("/run/checkpoint_%d.mdl"):format(step - 1)).root.model
      local after = cbk.open(dir .. ("/run/checkpoint_%d.mdl"):format(step)).root.model
      local function change(pattern)
        return norm(before, function(name, tensor)
          return not ALSO[name] and name:find(pattern) and (after[name]:to "float64" - tensor) / RATE
        end)
      end
      near(value(row, "model_wise_grad_norm"), change "", 1e-4)
      near(value(row, "per_layer_grad_norm/layer_0"), change "layers%.0%.", 1e-4)
      near(value(row, "per_layer_grad_norm/layer_1"), change "layers%.1%.", 1e-4)
      near(value(row, "model_wise_params_norm"), norm(before, function(name, t) return not ALSO[name] and t end), 1e-4)
    end
    equal(#rows_of(dir), 2)
  end)
end)
