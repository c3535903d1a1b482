-- The things that happen to tensors on their way, each written once as an invertible pair.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"
local heads_of = require "converters.vocabulary.heads"
local matrix = require "converters.vocabulary.matrix"
local values = require "converters.vocabulary.values"

local actions = {}

---@param options? { takes_null: boolean?, parts: integer?, left_parts: integer? }   parts: how many keys each side has
---@return Action
local function pair(name, forward, backward, options)
  local action = { name = name, forward = forward, backward = backward }
  for key, value in pairs(options or {}) do action[key] = value end
  return action
end

local one_to_one = { parts = 1 }

---`actions.pair(name, forward, backward, options)`: an action of your own; see ACTIONS.md. `options.parts` is the number of keys on
---the right for one on the left, or for `options.left_parts` on the left. With `options.takes_null`, null values of old checkpoints
---are passed to it; else null stays null.
function actions.pair(name, forward, backward, options)
  return pair(name, forward, backward, options)
end

local transposed = matrix.transposed

---A matrix is transposed, a vector is copied: Conv1D to Linear. A tensor of three dimensions or more is refused.
actions.transpose = pair("transpose", transposed, transposed, one_to_one)

---One tensor on the left, that many equal parts of its rows on the right.
---@param count integer
function actions.split(count)
  return pair("split", function(t)
    local rows = matrix.rows(t)
    if rows % count ~= 0 then cbk.fail("shape", ("%d rows do not split into %d parts"):format(rows, count)) end
    return t:split(rows / count, 0)
  end, function(parts)
    local rows = matrix.rows(parts[1])
    for _, part in ipairs(parts) do
      if matrix.rows(part) ~= rows then cbk.fail("shape", ("parts of %d and %d rows are not equal"):format(rows, matrix.rows(part))) end
    end
    return cbk.cat(parts, 0)
  end, { parts = count })
end

---Refuses a tensor that has other rows than so many heads of the size that the config says.
---@param t Tensor
---@param config Dict
---@param ... number    heads; several where they stand below each other
local function check_rows(t, config, ...)
  local rows, size, heads = matrix.rows(t), heads_of.size(config), 0
  for _, count in ipairs { ... } do heads = heads + count end
  if rows == heads * size then return end
  local queries, keys, width, field = heads_of.queries(config), heads_of.keys(config), heads_of.width(config)
  local names = heads_of.fields(config)
  local said = ("%s %d / %s %d"):format(field, width, names.count, queries)
  if keys ~= queries then said = ("%s, %s %d"):format(said, names.keys, keys) end
  local what = table.concat({ ... }, " + ") .. (heads == 1 and " head" or " heads")
  cbk.fail("shape", ("expected %g rows (%s of %g: %s), found %d; check these fields"):format(heads * size, what, size, said, rows))
end

-- --- query, key, value

actions.qkv = {}

---Refuses a fused projection, or a part of one, that reads another width than the model's.
local function check_inputs(t, config)
  local columns, width, field = t:shape()[2], heads_of.inputs(config)
  if columns and columns ~= width then cbk.fail("shape", ("expected %g inputs (%s), found %d"):format(width, field, columns)) end
end

---`actions.qkv.keys "proj_%s.weight"`: the list of the three keys of q, k and v.
function actions.qkv.keys(pattern)
  return { pattern:format "q", pattern:format "k", pattern:format "v" }
end

---Left: one Linear with q, k and v below each other. Right: three Linears. Heads and key heads come from the right config.
actions.qkv.stacked = pair("stacked qkv", function(t, at)
  local queries, keys, size = heads_of.queries(at.right), heads_of.keys(at.right), heads_of.size(at.right)
  check_rows(t, at.right, queries, keys, keys)
  check_inputs(t, at.right)
  local first, second = queries * size, (queries + keys) * size
  return { t:slice(0, 0, first), t:slice(0, first, second), t:slice(0, second, t:shape()[1]) }
end, function(parts, at)
  for i, part in ipairs(parts) do
    check_rows(part, at.right, i == 1 and heads_of.queries(at.right) or heads_of.keys(at.right))
    check_inputs(part, at.right)
  end
  return cbk.cat(parts, 0)
end, { parts = 3 })

---The same as `actions.qkv.stacked`, but the left has a Conv1D.
actions.qkv.conv1d = pair("qkv", function(t, at)
  return actions.qkv.stacked.forward(transposed(t), at)
end, function(parts, at)
  return transposed(actions.qkv.stacked.backward(parts, at))
end, { parts = 3 })

-- --- rotary embeddings

actions.rotary = {}

local interleave = matrix.interleaved

---@param heads fun(config: Dict): number
---@param check fun(t: Tensor, config: Dict, heads: number)
local function rotary(name, heads, check)
  local function turn(to_pairs)
    return function(t, at)
      local count = heads(at.right)
      check(t, at.right, count)
      return interleave(t, count, heads_of.rotary(at.right), to_pairs)
    end
  end
  return pair(name, turn(true), turn(false), one_to_one)
end

---Rotary rows: Hugging Face rotates row i with row i + rotary_dim / 2, the Model Zoo row 2i with row 2i + 1. Interleaves the first
---`rotary_dim` rows of each head, in weights and biases of the queries.
actions.rotary.queries = rotary("rotary q", heads_of.queries, check_rows)

---Interleaves rotary rows in weights and biases of the keys, by key heads.
actions.rotary.keys = rotary("rotary k", heads_of.keys, check_rows)

local function check_every_head(t, config, heads)
  check_rows(t, config, heads_of.queries(config))
  if heads ~= heads_of.queries(config) then
    cbk.warn(("rotary rows of the keys are reordered for %d groups, as the config says; check that the number is right"):format(heads))
  end
end

---Rotary rows of the keys as in release 1.9: each head has a key head, whatever number of groups the config has.
actions.rotary.keys_1_9 = rotary("rotary k", heads_of.keys, check_every_head)

---Rotary rows of the keys as in release 2.0, where a config may have fewer key heads than the checkpoint.
actions.rotary.keys_2_0 = rotary("rotary k", heads_of.keys, function(t, config, heads)
  if not pcall(check_rows, t, config, heads) then check_every_head(t, config, heads) end
end)

---Interleaves the rotary rows of a vector as long as one head, such as the weight of a norm over each head.
actions.rotary.vector = rotary("rotary vector", function() return 1 end, check_rows)

---A function for `also_left`: the buffer `inv_freq` of old files, 1 / base^(2i/rotary_dim). As in PyTorch, each step is rounded to
---float32.
function actions.rotary.frequencies(base)
  return function(at)
    local dim = heads_of.rotary(at.right)
    local function rounded(number_at)
      local out = {}
      for i = 1, dim / 2 do out[i] = number_at(i) end
      return cbk.tensor(out, { dtype = "float32" })
    end
    local exponents = rounded(function(i) return 2 * (i - 1) / dim end):tolist()
    local powers = rounded(function(i) return base ^ exponents[i] end):tolist()
    return rounded(function(i) return 1 / powers[i] end)
  end
end

---For `actions.qkv.grouped`: as many groups as heads.
actions.qkv.heads = heads_of.queries

---Left: one Linear, group by group: the group's queries, then one key head, then one value head. Right: three Linears with
---interleaved rows, or with rows as they are for `{ rotary = false }`.
---@param groups fun(config: Dict): number   the number of groups, as a function of the right config
---@param options? { rotary: boolean }
function actions.qkv.grouped(groups, options)
  local is_rotary = not (options and options.rotary == false)
  local function turn(t, heads, at, to_pairs)
    return is_rotary and interleave(t, heads, heads_of.rotary(at.right), to_pairs) or t
  end

  ---@return number heads, number groups, number rows   of queries in a group, in heads
  local function layout(at)
    local heads, count = heads_of.queries(at.right), groups(at.right)
    if count < 1 or heads % count ~= 0 then cbk.fail("config", ("%d heads do not split into %d groups"):format(heads, count)) end
    return heads, count, heads / count
  end

  local function forward(t, at)
    local heads, count, queries = layout(at)
    local shape, per_group = t:shape(), queries + 2
    check_rows(t, at.right, count * per_group)
    check_inputs(t, at.right)
    local size, width = shape[1] / (count * per_group), t:numel() / shape[1]
    local view = t:reshape { count, per_group, size, width }
    local function rows(from, to)
      return view:slice(1, from, to):reshape(matrix.with_rows(shape, count * (to - from) * size))
    end
    return {
      turn(rows(0, queries), heads, at, true), turn(rows(queries, queries + 1), count, at, true), rows(queries + 1, per_group),
    }
  end

  local function backward(parts, at)
    local heads, count, queries = layout(at)
    local shape = parts[1]:shape()
    for i, part in ipairs(parts) do
      check_rows(part, at.right, i == 1 and heads or count)
      check_inputs(part, at.right)
    end
    local size, width = shape[1] / heads, parts[1]:numel() / shape[1]
    local q, k = turn(parts[1], heads, at, false), turn(parts[2], count, at, false)
    local packed = cbk.cat({
      q:reshape { count, queries, size, width }, k:reshape { count, 1, size, width }, parts[3]:reshape { count, 1, size, width },
    }, 1)
    return packed:reshape(matrix.with_rows(shape, count * (queries + 2) * size))
  end

  return pair("grouped qkv", forward, backward, { parts = 3 })
end

-- --- tensors that one side has and the other computes

actions.buffer = {}

---Functions for `also_left`, `also_right` and `fill` that make buffers. `causal_mask`: ones on and below the diagonal, (1, 1, n, n) of
---uint8; `field` of the right config is n.
function actions.buffer.causal_mask(field)
  return function(at)
    local n = values.size_of(at.right, field)
    return cbk.tril({ 1, 1, n, n }, { dtype = "uint8" })
  end
end

---Makes a float32 scalar.
function actions.buffer.scalar(value)
  return function() return cbk.full({}, value, { dtype = "float32" }) end
end

---Makes the positions 0, 1, …, (1, n) of int64; `field` of the left config is n. Without it, n is the rows of the rule's tensor.
function actions.buffer.positions(field)
  return function(at, rows)
    if rows == cbk.null then return nil end
    local there = rows:shape()[1]
    local n = at.left[field] == nil and there or at.left[field]
    if type(n) ~= "number" then fields.refuse(field, n, "a number") end
    if n < 0 or n > there then
      cbk.fail("config", ("%s is %d, but '%s' has %d rows"):format(field, n, at.key, there))
    end
    local out = {}
    for i = 1, n do out[i] = i - 1 end
    return cbk.tensor(out, { dtype = "int64", shape = { 1, n } })
  end
end

---Slopes of n heads: powers of 2^(-8/n). Where n is no power of two, those of the next lower one, then every second one of
---the next higher.
local function alibi_slopes(n)
  local power, out = 1, {}
  while 2 * power <= n do power = 2 * power end
  for i = 1, power do out[i] = 2 ^ (-8 * i / power) end
  for i = 1, n - power do out[power + i] = 2 ^ (-8 * (2 * i - 1) / (2 * power)) end
  return out
end

---Makes the slopes of ALiBi positions, (heads, 1) of float32, if the right config has such positions.
function actions.buffer.alibi_slopes(at)
  if at.right.position_embedding_type ~= "alibi" then return nil end
  local heads = heads_of.queries(at.right)
  if heads > 2 ^ 16 then cbk.fail("config", ("num_heads is %.0f: at most 65536 heads can have ALiBi slopes"):format(heads)) end
  return cbk.tensor(alibi_slopes(heads), { dtype = "float32", shape = { heads, 1 } })
end

actions.head = {}

---For `fill`: the language-model head that a headless checkpoint lacks. It is the embedding if they are tied, else random.
---@param embedding string   the embedding's key on the left
function actions.head.weight(embedding)
  return function(at)
    if at.left.tie_word_embeddings == true then return at:source(embedding) end
    return at:invent({ values.size_of(at.right, "vocab_size"), values.size_of(at.right, "hidden_size") }, 0.02)
  end
end

---For `fill`: the bias of the language-model head, if the config has one.
function actions.head.bias(at)
  return at.right.use_bias_in_output == true and at:invent { values.size_of(at.right, "vocab_size") } or nil
end

-- --- what constructors take

local named, maybe, text, func = shapes.named, shapes.maybe, shapes.text, shapes.func
local field, key = named("a field", text), named("a key", text)

shapes.guard(actions, "actions", {
  pair = { named("a name", text), named("forward", func), named("backward", func),
    maybe(shapes.record("a table of options", { takes_null = shapes.flag, parts = shapes.size, left_parts = shapes.size })) },
  split = { named("the count of parts", shapes.size) },
  ["qkv.keys"] = { shapes.of("a pattern with one %s", function(value)
    return type(value) == "string" and select(2, value:gsub("%%s", "")) == 1 and not value:gsub("%%s", ""):find "%%"
  end) },
  ["qkv.grouped"] = { named("a function that counts the groups", func),
    maybe(shapes.record("a table of options", { rotary = shapes.flag })) },
  ["rotary.frequencies"] = { named("the base", shapes.number) },
  ["buffer.causal_mask"] = { field }, ["buffer.scalar"] = { shapes.number }, ["buffer.positions"] = { field }, ["head.weight"] = { key },
})

return rules.strict(actions, "action")
