-- Direct preference optimization: the Model Zoo's DPO model holds another model twice, as the policy that is trained and as
-- the reference that stays what it was.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local wrap = require "converters.engine.wrap"

local policy = {
  says = { left = "model_type", right = "model_name" },
  called = {
    gpt_neox = "gpt-neox", gpt_bigcode = "starcoder",
    gpt2 = function(config) return config.attention_head_type == "multiquery" and "santacoder" or "gpt2" end,
  },
  models = { "bloom", "falcon", "gpt2", "gptj", "gpt-neox", "llama", "mistral", "mixtral", "mpt", "santacoder", "starcoder" },
  place = "policy_model.model",
  copy = "ref_model.model",
}

local usual = { beta = 0.1, reference_free = false }

---Both sides name the model inside.
local function check_name(from) wrap.model_in(policy, from, "right") end

local function check_options(from)
  check_name(from)
  if from.dpo == nil then cbk.fail("config", "the config has no section 'dpo', so it is not for a DPO model") end
end

---The policy is the model.
local function lacks_policy(at) return at:source(policy.place .. at.key:sub(#policy.copy + 1)) == nil end
local no_policy = ("the policy, below '%s', has no such key, and the reference does not replace it"):format(policy.place)

local options = fields.written.right { dpo = cbk.dict(usual) }

return { {
  model = "dpo", name = "dpo", note = "a model that is trained by DPO: " .. table.concat(policy.models, ", ")
    .. " (mixtral since cs-2.3-dpo)",
  { "hf", "cs-2.1-dpo .. cs-2.9-dpo", wrap = policy, config = options, named_from = "2.1" },
  { "cs-2.1-no-dpo", "cs-2.1-dpo",
    keys = rules.keys {
      rules.refuse.right(policy.copy .. ".*", no_policy, lacks_policy),
      { "*", policy.place .. ".*", also_right = policy.copy .. ".*" },
    },
    config = fields.config { fields.used.left { "dpo" }, options, { "*" } },
    prepare = { left = check_name, right = check_options },
  },
} }
