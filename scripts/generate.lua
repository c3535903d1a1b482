-- cbk generate: continue a text with the model of a checkpoint

local cbk = require "cbk"
local cli = require "cbk.cli"
local cbk_errors = require "cbk.errors"
local computable = require "cbk.recognise.computable"
local converters = require "cbk.converters"
local generate = require "cstorch.models.generate"
local models = require "cstorch.models"
local numbers = require "cbk.numbers"
local tokens = require "cbk.tokens"

local parser = cli.parser("generate", "Continue a text with the model of a checkpoint.", [[
The checkpoint may have any format, with its config beside it. Everything is computed in float32, with
the keys and values of earlier tokens kept; the weights are in memory.

The most likely token is taken, unless --temperature is given. The text ends with the token that ends texts, after
--max-tokens tokens, or where the model has no more positions.

The tokenizer is the tokenizer.json beside the checkpoint; for a vocabulary of 256 or 257 the bytes of the text. --ids takes
and prints numbers, and needs none.

examples:
  cbk generate run/checkpoint_300.mdl --prompt "Shall I compare"
  cbk generate model_folder --prompt "Once" --temperature 0.8 --top-p 0.95
  cbk generate model_folder --ids 1,50,99 --max-tokens 20]])
parser:argument("checkpoint", "a checkpoint, or its folder"):argname "CHECKPOINT"
parser:mutex(
  parser:option("--prompt", "the text to continue"):argname "TEXT",
  parser:option("--ids", "the token ids to continue, from 0"):argname "IDS"
)
parser:option("--max-tokens", "at most so many new tokens (default: 100)"):argname("N"):default(100)
  :convert(cli.whole_number("--max-tokens", 1))
local function number(name, is_fine, expected)
  return function(text)
    local value = tonumber(text)
    if value and is_fine(value) then return value end
    return nil, ("%s %s: expected %s"):format(name, cbk.quote(text), expected)
  end
end
parser:option("--temperature", "draw by probability; scores are divided by T (default: 0, the most likely token)"):argname("T")
  :convert(number("--temperature", function(t) return t >= 0 and t <= 1e6 end, "a number from 0 to 1,000,000"))
parser:option("--top-k", "draw among the K most likely tokens only"):argname("K"):convert(cli.whole_number("--top-k", 1))
parser:option("--top-p", "draw among the most likely tokens that together have the probability P"):argname("P")
  :convert(number("--top-p", function(p) return p > 0 and p <= 1 end, "a number above 0, at most 1"))
parser:option("--seed", "of the random numbers (default: 0)"):argname("N"):convert(cli.whole_number("--seed", 0))
parser:option("--tokenizer", "bytes, a tokenizer.json, or its folder"):argname "NAME"
converters.model_option(parser)
parser:option("--config", "the checkpoint's config (default: the one beside it)"):argname "FILE"
cli.options(parser, "threads", "json", "allow-external")
local args = parser:parse()
if not (args.prompt or args.ids) then cli.usage_error("generate", "name what to continue with --prompt or --ids") end
if (args.top_k or args.top_p) and not args.temperature then
  cli.usage_error("generate", "--top-k and --top-p draw tokens: give --temperature as well, such as 0.8")
end
if args.threads then cbk.compute.threads(args.threads) end
converters.load()

---@param vocabulary integer
---@return Tokenizer|nil
local function tokenizer_of(vocabulary)
  if args.tokenizer then return tokens.open(args.tokenizer) end
  if args.ids then return nil end
  local beside = tokens.beside(args.checkpoint)
  if beside then return beside end
  if vocabulary == 256 or vocabulary == 257 then return tokens.open "bytes" end
  cbk.fail("missing", ("cannot encode the text: there is no tokenizer.json beside %s"):format(cbk.quote(args.checkpoint)),
    { advice = "--tokenizer names one; --ids takes token ids" })
end

---@param vocabulary integer
---@param tokenizer Tokenizer|nil
---@return integer[]
local function ids_to_continue(vocabulary, tokenizer)
  local ids = {}
  if args.ids then
    if (",%s,"):format(args.ids):find ",%s*,." or args.ids:find ",%s*$" then
      cli.usage_error("generate", ("--ids %s: a number is missing beside a comma"):format(cbk.quote(args.ids)))
    end
    for text in args.ids:gmatch "[^,%s]+" do
      local id = tonumber(text)
      local is_whole = id and id == math.floor(id) and math.abs(id) < 2 ^ 53
      if not is_whole then cli.usage_error("generate", ("--ids: %s is not a whole number"):format(cbk.quote(text))) end
      ids[#ids + 1] = id
    end
  else
    ids = tokenizer:encode(args.prompt)
  end
  if not ids[1] then cli.usage_error("generate", "there is no token to continue: the text is empty") end
  for _, id in ipairs(ids) do
    if id < 0 or id >= vocabulary then
      cbk.fail("value", ("the token %d is not in the model's vocabulary of %d"):format(id, vocabulary),
        { advice = "--tokenizer names the one of the model" })
    end
  end
  return ids
end

---Prints pieces of a text as they become whole characters.
---@param tokenizer Tokenizer
local function printer(tokenizer)
  local ids, shown = {}, 0
  return function(id, is_last)
    ids[#ids + 1] = id
    local text = tokenizer:decode(ids)
    local whole = is_last and #text or #text:gsub("[\192-\255][\128-\191]*$", function(tail)
      local length = tail:byte() >= 240 and 4 or tail:byte() >= 224 and 3 or 2
      return #tail < length and "" or tail
    end)
    if whole > shown then io.stdout:write(cbk.shown(text:sub(shown + 1, whole), true)) end
    io.stdout:flush()
    shown = math.max(shown, whole)
  end
end

local checkpoint = cli.open(args.checkpoint, args)
local side = computable.of(args.checkpoint, checkpoint, args.config, args.model)
local model = cbk_errors.within(cbk.quote(args.checkpoint), models.module, side.list, side.tensors)
local tokenizer = tokenizer_of(model:vocabulary())
local given = ids_to_continue(model:vocabulary(), tokenizer)
if #given > model:longest() then
  cbk.fail("value", ("the text has %s, and the model %d positions"):format(numbers.counted(#given, "token"), model:longest()),
    { advice = "give a shorter text" })
end
local print_token = tokenizer and not args.json and printer(tokenizer)

if print_token then
  for i, id in ipairs(given) do print_token(id, i == #given) end
end
local made, begin = {}, cbk.clock()
for id in generate.tokens(model, given, { temperature = args.temperature, top_k = args.top_k, top_p = args.top_p, seed = args.seed,
  stop = tokenizer and tokenizer.end_of_text }) do
  made[#made + 1] = id
  if print_token then print_token(id, #made == args.max_tokens) end
  if #made == args.max_tokens then break end
end
local seconds = cbk.clock() - begin
if args.json then
  cli.print_json(cbk.dict { { "ids", cbk.list(made) }, { "text", tokenizer and cbk.shown(tokenizer:decode(made), true) or cbk.null },
    { "tokens_per_second", numbers.json_number(#made / seconds) } })
elseif tokenizer then
  print()
else
  print(table.concat(made, ","))
end
