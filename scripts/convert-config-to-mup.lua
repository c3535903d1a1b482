-- cbk convert-config-to-mup: make a muP config from a GPT-2/3 config

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local mup_config = require "converters.modelzoo.mup_config"

local parser = cli.parser("convert-config-to-mup", [[
Make a muP config for a GPT-2/3 model. Initializers, output and embedding scales and learning rates
follow from the model's width and from the values tuned on a base model. The rest is unchanged.]], [[
examples:
  cbk convert-config-to-mup -i params.yaml
  cbk convert-config-to-mup -i params.yaml -d_base 256 -lr_base 6e-3 -std_base 0.08 -m_base 10]])

local function positive(text)
  local value = text:find "^[%s+%-%d.eE]+$" and tonumber(text)
  if not (value and value > 0 and value < math.huge) then return nil, ("'%s' is not a positive number"):format(text) end
  return value
end

local function width(text)
  local value = tonumber(text:match "^%s*%+?(%d+)%s*$")
  if not value or value == 0 then return nil, ("'%s' is not a width"):format(text) end
  return value
end

local defaults = mup_config.defaults
parser:option("-i --input_yaml --config", "the config, of a release up to 2.2, with model.hidden_size, model.num_hidden_layers and "
  .. "optimizer.learning_rate (a list: a Linear warm-up, then Linear or CosineDecay)"):hidden_name("--input-yaml")
  :argname("FILE"):count(1)
parser:option("--base_layer_width", "-d_base: hidden size of the base model (default: 256)"):argname("N"):convert(width)
parser:option("--base_lr", "-lr_base: its learning rate (default: 6e-3)"):argname("RATE"):convert(positive)
parser:option("--base_init_std", "-std_base: the std of its initializers (default: 0.08)"):argname("STD"):convert(positive)
parser:option("--m_embed", "-m_base: its embedding multiplier (default: 10)"):argname("SCALE"):convert(positive)
parser:option("-o --output_yaml", "the output (default: INPUT_muP.yaml)"):hidden_name("--output"):argname "FILE"
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "quiet", "json")
cli.single_dash(parser, {
  ["-d_base"] = "--base_layer_width", ["-lr_base"] = "--base_lr", ["-std_base"] = "--base_init_std", ["-m_base"] = "--m_embed",
})
local args = parser:parse()

local target = args.output_yaml or (args.input_yaml:match "^(.*[^/.])%.[^./]*$" or args.input_yaml) .. "_muP.yaml"
converters.refuse_existing(target, args)

local base, assumed = {}, {}
for _, name in ipairs { "base_layer_width", "base_lr", "base_init_std", "m_embed" } do
  base[name] = args[name] or defaults[name]
  if not args[name] then assumed[#assumed + 1] = ("%s %s"):format(name, defaults[name]) end
end
local config = mup_config.generate(cbk.config.load(args.input_yaml), base)
if #assumed > 0 then cbk.warn("the base model is not fully described: using Cerebras-GPT's " .. table.concat(assumed, ", ")) end
if not args.dry_run then cbk.config.save(config, target, { overwrite = args.overwrite, format = "yaml", indent = 2 }) end
cli.say(args, cli.saved_text(args, "muP config", target))
cli.print_result(args, not args.dry_run, { { "config", target } })
