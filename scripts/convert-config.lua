-- cbk convert-config: convert a model's config alone

local cbk = require "cbk"
local cli = require "cbk.cli"
local config_file = require "cbk.cli.config_file"
local composite = require "cbk.converters.composite"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local configs = require "cbk.recognise.configs"
local lacking_field = require "cbk.recognise.lacking_field"

local parser = cli.parser("convert-config", "Convert a model's config file.", [[
examples:
  cbk convert-config config.json --to cs-2.4
  cbk convert-config --model llama --src-fmt hf --tgt-fmt cs-2.4 config.json
  cbk convert-config --model gpt2 --src-fmt cs-1.9 --tgt-fmt cs-current params.yaml -o new]])
parser:argument("config_file", "config.json or params.yaml"):argname "CONFIG"
converters.model_option(parser)
cli.format_options(parser, { from = "its format: hf or cs-X.Y (default: hf, if it is a config of Hugging Face)",
  to = "the format wanted, such as cs-2.5 or hf; cs-current is the newest release", needs_to = true })
parser:option("-o --output-dir", "where to write (default: beside the input; inside it, if it is a folder)"):hidden_name("--output")
  :argname "DIR"
cli.converter_options(parser)
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "json")
parser:flag("--debug", "no effect; accepted for old command lines (see cbk --traceback)")
local args = parser:parse()

---Sets the options that were left out.
---@param only string|nil   of converters.load
local function detect_options(only)
  if args.src_fmt and (args.model or only) then
    args.model = args.model or only
    return
  end
  config_file.check_model(args.config_file)
  local given = config_beside.load(args.config_file)
  if not args.src_fmt and not configs.says_hugging_face(given) then
    cli.usage_error("convert-config", "missing option '--from': the format of this config cannot be detected without its checkpoint")
  end
  local others
  args.model, args.src_fmt, others = configs.model_of(given, args.model or only, args.src_fmt)
  if #others > 0 then
    cbk.fail("usage", ("cannot detect the model of '%s': %s or %s fit; name it with --model"):format(args.config_file, args.model,
      table.concat(others, " or ")))
  end
  cli.say(args, ("Found: --model %s --src-fmt %s"):format(args.model, args.src_fmt))
end

cli.confine(args, args.output_dir or cbk.fs.folder_of(args.config_file))
detect_options(converters.load(args.converter, args.sandbox))
converters.refuse_foreign(args.model, args)
local job = converters.job(converters.route(args.model, args.src_fmt, args.tgt_fmt, "config"))
job.is_config_only = true
local to_hf, parts = job.tgt == "hf", composite.parts(job)
if not parts then args.config_file = converters.config_file(args.config_file) end
local folder = args.output_dir or cbk.fs.folder_of(args.config_file)

---@param config Dict
---@return Dict
local function converted(config)
  local about = { path = args.config_file, config = config, model = args.model, src = job.src, tgt = args.tgt_fmt }
  return lacking_field.within(about, converters.config, args.model, job, config)
end

---Writes the config of each part into its own folder.
local function write_parts(config)
  local files, paths = {}, {}
  for _, part in ipairs(parts) do
    for name, text in pairs(composite.files(part, config, folder)) do
      local path = cbk.fs.inside(composite.output_folder(folder, part), name)
      converters.refuse_existing(path, args)
      files[path], paths[#paths + 1] = text, path
    end
  end
  if not args.dry_run then cbk.fs.write_all(files, { overwrite = args.overwrite }) end
  for _, path in ipairs(paths) do cli.say(args, cli.saved_text(args, "Config", path)) end
  cli.print_result(args, not args.dry_run, { { "config", folder } })
end

if parts and to_hf then
  write_parts(converted(cbk.config.load(args.config_file)))
  return
end
local name = cbk.fs.basename(args.config_file):gsub("(.)%.[^.]*$", "%1")
local is_yaml = converters.catalogue.release(job.tgt) ~= nil -- layouts of the user's own have JSON, as Hugging Face does
local target = cbk.fs.join(folder, ("%s_to_%s.%s"):format(name, job.tgt, is_yaml and "yaml" or "json"))
converters.refuse_existing(target, args)

local source = parts and composite.load_configs(args.config_file, parts, args) or cbk.config.load(args.config_file)
local config = converted(source)
if not args.dry_run then cbk.config.save(config, target, { overwrite = args.overwrite, indent = 4, sort = is_yaml }) end
converters.say_saved(args, job, cli.saved_text(args, "Config", target))
cli.print_result(args, not args.dry_run, { { "config", target } })
