-- The kinds of findings of `cbk check`: identifier, usual severity, meaning.

local cbk = require "cbk"
local naming = require "cbk.naming"

local rules = {}

---@class CheckRule
---@field id string
---@field severity "error"|"warning"|"note"   the usual one; single findings may differ
---@field text string
---@field help string   what to try

---@type CheckRule[]
rules.list = {
  { id = "damaged", severity = "error", text = "The file is damaged: cut short, or its bytes do not match a checksum.",
    help = "Copy or download the file again, and compare its size and checksum with the original." },
  { id = "unsafe-global", severity = "error", text = "A pickle names a function or class that is not plain data.",
    help = "Ask the author for safetensors. Do not load the file with Python: that could run code." },
  { id = "record", severity = "warning", text = "A pickle has objects beside the weights that are not plain data.",
    help = "Python runs code of their classes to load the file, or refuses it (weights_only=True). Share the weights alone." },
  { id = "shard-missing", severity = "error", text = "The index names a shard that does not exist, or cannot be opened.",
    help = "Copy or download the missing shard again." },
  { id = "shard-key-missing", severity = "error", text = "The index says that a shard has a tensor, but the shard does not.",
    help = "Copy or download the index and all shards again: they are of different checkpoints." },
  { id = "index-missing", severity = "error", text = "A folder has shards, but no index of them.",
    help = "Copy or download the index (*.index.json) again." },
  { id = "part", severity = "warning", text = "The file is one of several that are one checkpoint together.",
    help = "Check all parts; join them with the program that wrote them before the checkpoint is used." },
  { id = "nan", severity = "error", text = "Elements of a tensor are NaN.",
    help = "Go back to an earlier checkpoint: the training or a conversion has failed." },
  { id = "infinity", severity = "error", text = "Elements of a tensor are infinite.",
    help = "Go back to an earlier checkpoint, or convert again with a wider dtype: a number was too large for its dtype." },
  { id = "missing-layer", severity = "error", text = "A whole layer that the config describes has no tensors.",
    help = "Use the config that belongs to the checkpoint, or write the checkpoint again." },
  { id = "missing-weight", severity = "error", text = "A tensor that the config describes does not exist.",
    help = "Use the config that belongs to the checkpoint, or write the checkpoint again." },
  { id = "wrong-shape", severity = "error", text = "A tensor has another shape than the config says.",
    help = "Use the config that belongs to the checkpoint." },
  { id = "config", severity = "error", text = "The config beside the checkpoint cannot be used, or is that of another model.",
    help = "Correct the config, or name another one with --config." },
  { id = "lost-scales", severity = "warning", text = "Weights have less than 16 bits, and there are no scales for them.",
    help = "Get the checkpoint with its scales, or the one of 16 or 32 bits; weights that were cast to 8 bits are as they should be." },
  { id = "not-floating", severity = "error", text = "A weight has whole numbers or flags, where its model has floats.",
    help = "Get the original checkpoint: these may be the codes of quantised weights, without what makes numbers of them." },
  { id = "quantised", severity = "note", text = "Weights are quantised: codes, which scales beside them make numbers of.",
    help = "`cbk copy --dequantize bfloat16` makes numbers of them, and so do `convert` and `fold-lora-checkpoint`, if cbk reads the "
      .. "method; a plain copy keeps codes and scales." },
  { id = "scales", severity = "error", text = "Scales or other parts of a quantised weight do not fit its codes.",
    help = "Get the checkpoint again, with the config.json that belongs to it." },
  { id = "not-quantised", severity = "warning", text = "The config says that weights are quantised, and they are plain numbers.",
    help = "Remove the field from the config if they were dequantised; get the original checkpoint if somebody cast their codes." },
  { id = "unknown-weight", severity = "warning", text = "The model that the config describes does not have a tensor of this name.",
    help = "Use the config that belongs to the checkpoint: programs that read this one ignore the tensor." },
  { id = "state", severity = "error", text = "A state of the optimizer contradicts the weight that it belongs to; or is missing.",
    help = "Go back to an earlier checkpoint, or go on without the optimizer's states (`cbk copy --exclude 'optimizer.state.*'`)." },
  { id = "flat-keys", severity = "warning", text = "An H5 file has the weights of a model at its top, and not in a dict `model`.",
    help = "Write it as a tree: in a script, `out[key] = tensor` puts such keys into the dict (`cbk help run`)." },
  { id = "wrapped", severity = "note", text = "A training script or framework has put something around the model.",
    help = "Nothing has to be done: cbk looks through it. Other programs need the names of the model (`cbk copy --weights`, or "
      .. "`--rename`)." },
  { id = "tied-weights-differ", severity = "warning", text = "The config ties two weights, but their values differ.",
    help = "Write one value under both names: programs use one for both. Or let the config say that head and embeddings are not tied." },
  { id = "layer-gap", severity = "warning", text = "Numbered layers are not consecutive.",
    help = "Write the checkpoint again: layers were lost, or were renumbered incompletely." },
  { id = "layer-incomplete", severity = "warning", text = "A layer lacks tensors that its neighbours have.",
    help = "Write the checkpoint again." },
  { id = "layer-shape", severity = "warning", text = "A weight has another shape than the same weight of all other layers.",
    help = "Compare the weight with an earlier checkpoint, and look at the program that wrote it: it was padded or cut, or is of another "
      .. "model." },
  { id = "constant", severity = "warning", text = "All elements of a weight are the same number.",
    help = "Look at the program that wrote it: the weight was never trained, or never loaded." },
  { id = "layer-outlier", severity = "warning", text = "A weight is much larger or smaller than the same weight of the other "
    .. "layers, or of another sign. The RMS of a matrix: 8 times, of a norm: 16 times, of a bias: 100 times; in the first and "
    .. "last two layers of a matrix 30 times, and that of vectors may be any. An element of a matrix: 100 times, of a vector: 1,000 times.",
    help = "Look at all layers with `cbk plot FILE 'KEY with *' --by-layer`, and compare the weight with an earlier "
    .. "checkpoint: it was scaled twice, or the training was unstable there." },
  { id = "dead-rows", severity = "warning", text = "Rows or columns of a weight are all 0, and its siblings in other layers have none.",
    help = "Compare the weight with an earlier checkpoint: parts of it were not written, or features have died in the training." },
  { id = "untrained-rows", severity = "note", text = "Rows of an embedding or a head were never trained: 0, tiny, or equal to a neighbour.",
    help = "Nothing has to be done if these are padding or unused words; a fine-tuning that uses them has to initialise them." },
  { id = "duplicate", severity = "warning", text = "Tensors at different keys have the same content, and are not tied.",
    help = "Check that each layer was written under its own key." },
  { id = "unwritten", severity = "warning", text = "A tensor, or some of its chunks, was never written: it reads as a fill value.",
    help = "Write the file again: the program that wrote it was interrupted, or leaves out what is equal to the fill value." },
  { id = "overflow", severity = "warning", text = "Numbers are too large for the dtype that --for names.",
    help = "Use a dtype with a wider range, such as bfloat16, or scale the weight." },
  { id = "underflow", severity = "note", text = "Many numbers become 0 in the dtype that --for names; a warning if most do.",
    help = "Use a dtype with a wider range, or scale the weight." },
  { id = "unlisted-key", severity = "warning", text = "A shard has a tensor that the index does not list.",
    help = "Add it to the index, or write the checkpoint again: some programs load it, and some do not." },
  { id = "total-size", severity = "warning", text = "The index has another total size than the tensors have.",
    help = "Correct metadata.total_size of the index: some programs reserve memory by it." },
  { id = "leftover-file", severity = "warning", text = "A file was left by an interrupted program, or belongs to another checkpoint.",
    help = "Delete it if no program is still writing it." },
  { id = "not-checked", severity = "note", text = "A file or folder in the folder is no part of its model, and was not checked.",
    help = "Check it by its own name." },
  { id = "reading", severity = "warning", text = "The file has more or less in it than its format says, or lacks what would show damage.",
    help = "Look at the program that wrote it, and copy or download the file again." },
  { id = "unreadable", severity = "warning", text = "A tensor cannot be read, so it was not checked.",
    help = "Read it with the program that wrote it." },
}

-- The rules that need the sizes of weights and rows, which a scan computes if it is asked for them.
rules.OF_SIZES = { "constant", "layer-outlier", "dead-rows", "untrained-rows" }

rules.by_id = {}
for position, rule in ipairs(rules.list) do
  rule.position = position
  rules.by_id[rule.id] = rule
end

---Whether a text is the identifier of a rule; nil and the problem if not.
---@param text string
---@return string|nil id, string|nil problem
function rules.named(text)
  if rules.by_id[text] then return text end
  local ids = {}
  for i, rule in ipairs(rules.list) do ids[i] = rule.id end
  local question = naming.question(cbk.nearest(text, ids, 3))
  table.sort(ids)
  return nil, ("%s is not a rule; %s"):format(cbk.quote(text), question or "the rules are " .. table.concat(ids, ", "))
end

return rules
