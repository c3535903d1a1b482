-- Loaders, runs, step closures, samplers and restartable sources of cstorch.

local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local data, StepRange = cstorch.utils.data, cstorch.utils.StepRange

local function batches(count)
  local list = {}
  for i = 1, count do list[i] = cstorch.tensor { i } end
  return list
end

local function loader(list, options) return data.DataLoader(function() return list end, options) end

--- Runs a whole loop.
local function run(source)
  local steps = 0
  for i in source:iter() do steps = i end
  return steps
end

--- Begins a loop, calls `body` in its first step, and leaves it.
local function leave(source, body)
  for i in source:iter() do
    body(i)
    if i == 1 then break end
  end
end

--- A test on a fresh backend, with the warnings that it gives.
local function on(kind, body)
  return function()
    cstorch.testing.reset()
    if kind then cstorch.backend(kind) end
    local texts = {}
    cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local fine, problem = pcall(body, texts)
    cstorch.testing.reset()
    if not fine then error(problem, 0) end
  end
end

describe("cstorch: DataLoader", function()
  it("leaves the tensors of its source on the host", on("CSX", function()
    local list, devices = batches(2), {}
    for i, batch in loader(list, { num_steps = 2 }):iter() do devices[i] = batch.device end
    equal({ devices, list[1]:item(), list[2].device }, { { "csx", "csx" }, 1, "cpu" })
  end))

  it("gives its input function what is not the step budget", on("CPU", function()
    local given
    local source = data.DataLoader(function(kw)
      given = kw
      return batches(2)
    end, { num_steps = 3, batch_size = 4, path = "x", nested = { 1 } })
    equal(given, nil)
    equal({ source:total_steps(), source.batch_size, source.num_epochs, source:length() }, { 3, 4, 1, 2 })
    equal(given, { batch_size = 4, path = "x", nested = { 1 } })
  end))

  it("loops over its budget and starts its source again", on("CPU", function()
    local seen = {}
    for i, batch in loader(batches(2), { num_steps = 5 }):iter() do seen[i] = batch:item() end
    equal(seen, { 1, 2, 1, 2, 1 })
  end))

  it("takes objects with iter and length, and nested batches", on("CPU", function()
    local starts = 0
    local source = {
      length = function() return 2 end,
      iter = function()
        starts = starts + 1
        local i = 0
        return function()
          i = i + 1
          return i <= 2 and { x = { cstorch.tensor { i, i } }, note = "n" } or nil
        end
      end,
    }
    local seen = loader(source, { num_epochs = 2 })
    local sums = {}
    for i, batch in seen:iter() do sums[i] = batch.x[1]:sum():item() end
    equal({ sums, starts, seen.batch_size }, { { 2, 4, 2, 4 }, 2, 2 })
  end))

  it("warns about batches of several sizes, which CSX refuses", on("CPU", function(texts)
    local list = { cstorch.tensor { 1, 2 }, cstorch.tensor { 1 } }
    run(loader(list, { num_steps = 2 }))
    equal(texts, { "the batch size changes from 2 to 1; drop the last incomplete batch" })
    cstorch.testing.reset()
    cstorch.backend "CSX"
    raises("the batch size changes from 2 to 1", function() run(loader(list, { num_steps = 2 })) end, "runtime")
  end))

  for _, case in ipairs {
    { function() return {} end, "the loader has no batches", "assertion" },
    { function() return 5 end, "must return a list of batches or an object with 'iter', not 5", "type" },
    { function() return { iter = function() return function() end end } end, "the source yields no batch", "runtime" },
    { function() return { "x" } end, "expected a batch of tensors, found 'x'", "runtime" },
    { function() return { { 1, 2 } } end, "expected a batch of tensors", "runtime" },
  } do
    it("refuses a source: " .. case[2], on("CPU", function()
      raises(case[2], function() run(data.DataLoader(case[1], { num_steps = 1 })) end, case[3])
    end))
  end

  it("refuses a bad budget by name and value", on("CPU", function()
    raises("num_steps must be >= 1, not 0", function() loader(batches(1), { num_steps = 0 }):total_steps() end, "value")
    raises("max_steps must be an integer, not 'x'", function() loader(batches(1), { max_steps = "x" }):iter() end, "value")
    raises("expected a function that makes batches, found 1", function() data.DataLoader(1) end, "type")
    equal(data.compute_num_steps(loader(batches(3), { num_steps = 9 }), { num_epochs = 2 }), 6)
    raises("unknown keyword 'epochs'", function() data.compute_num_steps(loader(batches(3)), { epochs = 2 }) end, "type")
  end))
end)

describe("cstorch: StepRange", function()
  it("matches its steps", function()
    local range = StepRange(1, 6, { step = 2, include_last = true })
    equal({ range:match(0), range:match(1), range:match(2), range:match(5), range:match(6) }, { false, true, false, true, false })
    equal({ range:steps(), range:final(), range:length(), range:next(0), range:next(4) }, { { 1, 3, 5 }, 5, 3, 1, 5 })
  end)

  it("refuses bad bounds", function()
    raises("stop must be an integer above start 3 and at most 2^53, not 3", function() StepRange(3, 3) end, "value")
    raises("step must be an integer from 1 to 2^53, not 0.5", function() StepRange(0, 3, { step = 0.5 }) end, "value")
    raises("step 3 is past the last step 2", function() StepRange(0, 3):next(3) end, "value")
  end)

  it("is no list when it has too many steps", function()
    raises("at most 2^53, not 1e+300", function() StepRange(0, 1e300) end, "value")
    local range = StepRange(0, 2 ^ 53)
    equal({ range:length(), range:next(2 ^ 40), range:match(2 ^ 50) }, { 2 ^ 53, 2 ^ 40, true })
    raises("expected at most 10000000 steps for a list, found 9007199254740992", function() range:steps() end, "value")
  end)
end)

describe("cstorch: DataExecutor", function()
  it("counts steps", on("CPU", function()
    local executor = data.DataExecutor(loader(batches(3)), { num_steps = 2 })
    equal({ executor:length(), executor.iteration, executor.user_iteration, cstorch.current_executor() }, { 2, -1, 0, nil })
    local seen = {}
    for i in executor:iter() do
      seen[i] = { executor.iteration, executor.user_iteration, executor.is_initial_step, executor.on_final_iteration }
      is_true(cstorch.current_executor() == executor)
    end
    equal(seen, { { 0, 1, true, false }, { 1, 2, false, true } })
    equal(cstorch.current_executor(), nil)
    equal(data.DataExecutor(loader(batches(3), { num_epochs = 2 })):length(), 6)
  end))

  it("takes a list of ranges as checkpoint_steps", on("CPU", function()
    local saved = {}
    local save = cstorch.checkpoint_closure(function(i) saved[#saved + 1] = i end)
    local ranges = { StepRange(4, 6), StepRange(0, 3, { step = 2 }) }
    for i in data.DataExecutor(loader(batches(1)), { num_steps = 7, checkpoint_steps = ranges }):iter() do save(i) end
    equal(saved, { 1, 3, 5, 6 })
    raises("the ranges 0 to 3 and 2 to 4 overlap", function()
      data.DataExecutor(loader(batches(1)), { num_steps = 7, checkpoint_steps = { StepRange(2, 4), StepRange(0, 3) } })
    end, "value")
  end))

  it("runs more steps than a list holds", on("CPU", function(texts)
    local options = { num_steps = 2 ^ 50, checkpoint_steps = 6, activation_steps = 4 }
    local executor = data.DataExecutor(loader(batches(1)), options)
    leave(executor, function() equal({ executor.activation_steps, executor:next_checkpoint_step() }, { 2, 6 }) end)
    executor:close()
    equal(#texts, 1)
    equal(data.DataExecutor(loader(batches(1)), { num_steps = 6, checkpoint_steps = 6, activation_steps = 4 }).activation_steps, 4)
  end))

  it("uses the configured checkpoint steps", on(nil, function()
    cstorch.configure { checkpoint_steps = 2 }
    cstorch.backend "CPU"
    local executor = data.DataExecutor(loader(batches(1)), { num_steps = 5 })
    local seen = {}
    for i in executor:iter() do seen[i] = { executor.is_checkpoint_step, executor:next_checkpoint_step() } end
    equal(seen, { { false, 2 }, { true, 2 }, { false, 4 }, { true, 4 }, { true, 5 } })
  end))

  for _, case in ipairs {
    { { num_steps = 0 }, "num_steps must be at least 1, but is 0", "runtime" },
    { { num_steps = 1.5 }, "num_steps must be an integer, not 1.5", "value" },
    { { num_steps = 2, checkpoint_steps = 1.5 }, "checkpoint_steps must be an integer, not 1.5", "value" },
    { { num_steps = 2, checkpoint_steps = -2 }, "checkpoint_steps must not be negative, but is -2", "runtime" },
    { { num_steps = 2, checkpoint_steps = { 3 } }, "item 1 is 3, not a StepRange", "value" },
    { { num_steps = 2, activation_steps = 0 }, "activation_steps must be an integer >= 1, not 0", "value" },
    { { steps = 2 }, "unknown keyword 'steps'", "type" },
  } do
    it("refuses: " .. case[2], on("CPU", function()
      raises(case[2], function() data.DataExecutor(loader(batches(2)), case[1]) end, case[3])
    end))
  end
end)

describe("cstorch: step closure", function()
  local function logger()
    local log = {}
    return log, cstorch.step_closure(function(...) log[#log + 1] = table.concat({ ... }, ":") end)
  end

  it("copies tensors when it is called, also nested ones", on("CPU", function()
    local t, seen = cstorch.tensor { 1 }, nil
    local look = cstorch.step_closure(function(tree) seen = tree.a[1]:item() end)
    for _ in loader(batches(1), { num_steps = 1 }):iter() do
      look { a = { t } }
      t:fill_(5)
    end
    equal(seen, 1)
  end))

  it("copies host tensors on the CSX, too", on("CSX", function()
    local t, seen = cstorch.tensor { 1 }, nil
    local look = cstorch.step_closure(function(x) seen = x:item() end)
    for _ in loader(batches(1), { num_steps = 1 }):iter() do
      look(t)
      t:fill_(5)
    end
    equal(seen, 1)
  end))

  it("runs when the loop was left by break and is closed", on("CPU", function(texts)
    local log, note = logger()
    local source = loader(batches(3), { num_steps = 3 })
    for i in source:iter() do
      note(i)
      if i == 2 then break end
    end
    equal(log, { "1" })
    source:close()
    equal({ log, cstorch.current_executor(), texts }, { { "1", "2" }, nil, {} })
    source:close()
    equal(#log, 2)
  end))

  it("needs the iterator of its loader, which is no list", on("CPU", function()
    local source = loader(batches(1), { num_steps = 1 })
    local function looped(iterate)
      return function(one)
        for _, batch in iterate(one) do tostring(batch) end
      end
    end
    for _, loop in ipairs { looped(pairs), looped(ipairs), function(one) one() end } do
      raises("'for i, batch in loader:iter() do'", function() loop(source) end, "type")
      raises("'for i, batch in executor:iter() do'", function() loop(data.DataExecutor(source)) end, "type")
    end
  end))

  it("runs when the loader of an executor is closed", on("CPU", function(texts)
    local log, note = logger()
    local source = loader(batches(3))
    leave(data.DataExecutor(source, { num_steps = 3 }), note)
    source:close()
    equal({ log, cstorch.current_executor(), texts }, { { "1" }, nil, {} })
  end))

  it("warns when the loop was left and is not closed", on("CPU", function(texts)
    local log, note = logger()
    leave(loader(batches(3), { num_steps = 3 }), note)
    for i in loader(batches(1), { num_steps = 1 }):iter() do note("next", i) end
    equal(log, { "next:1" })
    equal(texts, { "1 step closures of step 1 never ran; after leaving a loop by break, call close() of the loader or the executor" })
  end))

  it("warns when an abandoned loop is collected", on("CPU", function(texts)
    local _, note = logger()
    leave(loader(batches(3), { num_steps = 3 }), note)
    collectgarbage()
    collectgarbage()
    equal({ #texts, cstorch.current_executor() }, { 1, nil })
  end))

  it("ends a loop within which another one starts", on("CPU", function()
    local outer = loader(batches(2), { num_steps = 2 }):iter()
    outer()
    run(loader(batches(1), { num_steps = 1 }))
    raises("another loop ended this run after step 1", outer, "runtime")
  end))

  it("passes on an error of its function", on("CPU", function()
    local fails = cstorch.step_closure(function() error("mine", 0) end)
    local fine, problem = pcall(function()
      for _ in loader(batches(1), { num_steps = 2 }):iter() do fails() end
    end)
    equal({ fine, problem, cstorch.current_executor() }, { false, "mine", nil })
  end))

  it("that fails ends its run, and leaves the next one alone", on("CPU", function(texts)
    local log, note = logger()
    local fails = cstorch.step_closure(function() error("mine", 0) end)
    local next_step = loader(batches(2), { num_steps = 2 }):iter()
    next_step()
    fails()
    equal({ pcall(next_step) }, { false, "mine" })
    equal(next_step(), nil)
    note "before"
    for i in loader(batches(2), { num_steps = 2 }):iter() do note(i) end
    equal({ log, texts }, { { "before", "1", "2" }, {} })
  end))

  it("skips steps that are not activation steps", on("CPU", function()
    local log, note = logger()
    for i in data.DataExecutor(loader(batches(1)), { num_steps = 5, activation_steps = 2 }):iter() do note(i) end
    equal(log, { "2", "4", "5" })
  end))

  it("is left out when only compiling, in one step", on(nil, function(texts)
    cstorch.configure { validate_only = true }
    cstorch.backend "CPU"
    local log, note = logger()
    local steps = 0
    for i in loader(batches(1), { num_steps = 5 }):iter() do
      note(i)
      steps = i
    end
    equal({ steps, log, texts }, { 1, {}, { "validate_only runs exactly one step, not 5" } })
  end))

  it("takes a function, and warns about run_async", on("CPU", function(texts)
    raises("step_closure: expected a function, found 3", function() cstorch.step_closure(3) end, "type")
    raises("checkpoint_closure: expected a function, found nil", function() cstorch.checkpoint_closure() end, "type")
    cstorch.step_closure(function() end, { run_async = true })
    equal(#texts, 1)
  end))
end)

describe("cstorch: ShardedSampler", function()
  local function epoch(sampler)
    local list = {}
    for batch in sampler:batches() do list[#list + 1] = table.concat(batch, " ") end
    return list
  end

  it("shuffles each epoch by its seed", on(nil, function()
    local function make(options)
      local all = { dataset_size = 6, batch_size = 3, shuffle = true, seed = 3 }
      for key, value in pairs(options) do all[key] = value end
      return data.ShardedSampler(all)
    end
    local sampler = make {}
    local first, second = epoch(sampler), epoch(sampler)
    equal(epoch(make {}), first)
    is_true(table.concat(first, ",") ~= table.concat(second, ","))
    equal(epoch(make { start_index = 6 }), second)
    equal(epoch(make { start_index = 3 }), { first[2] })
    local sum = 0
    for x in table.concat(first, " "):gmatch "%d+" do sum = sum + x end
    equal(sum, 15)
  end))

  it("pads the last batch from the start of the epoch", on(nil, function()
    equal(epoch(data.ShardedSampler { dataset_size = 5, batch_size = 3, pad_last = true }), { "0 1 2", "3 4 0" })
  end))

  for _, case in ipairs {
    { { batch_size = 2 }, "keyword 'dataset_size' is missing", "type" },
    { { dataset_size = 0 }, "dataset_size must be an integer from 1 to 100000000, not 0" },
    { { dataset_size = 1e300 }, "dataset_size must be an integer from 1 to 100000000, not 1e+300" },
    { { dataset_size = 4, batch_size = 1e300 }, "batch_size must be an integer from 1 to 100000000, not 1e+300" },
    { { dataset_size = 4, num_csx = 2 }, "sharding over several workers needs batch_size" },
    { { dataset_size = 4, batch_size = 2, wse_id = 1 }, "wse_id must be an integer from 0 to 0, not 1" },
    { { dataset_size = 4, batch_size = 2, drop_last = false }, "set drop_last or pad_last", "value", "CSX" },
  } do
    it("refuses: " .. case[2], on(case[4], function()
      raises(case[2], function() data.ShardedSampler(case[1]) end, case[3] or "value")
    end))
  end
end)

describe("cstorch: a restartable loader", function()
  --- A source that counts up; its state is its position.
  local function counter(options)
    local at = 0
    local source = {}
    function source.iter()
      return function()
        at = at + 1
        return cstorch.tensor { at }
      end
    end
    function source.state_dict() return { at = at, worker = data.get_worker_state().global_worker_id } end
    function source.aggregate_state_dict(_, states) return { states = states } end
    function source.deaggregate_state_dict(_, whole) return whole.states[data.get_worker_state().global_worker_id + 1] end
    function source.load_state_dict(_, state) at = state.at end
    for key, value in pairs(options or {}) do source[key] = value or nil end
    return source
  end

  local function make(options) return data.DataLoader(function() return counter(options) end, { num_steps = 4 }) end

  it("goes on where its state says", on("CPU", function()
    local first, state = make(), nil
    for i in data.DataExecutor(first, { num_steps = 4, checkpoint_steps = 2 }):iter() do
      if i == 2 then state = first:state_dict() end
    end
    equal(state, { states = { { at = 2, worker = 0 } } })
    local second, seen = make(), {}
    second:load_state_dict(state)
    for i, batch in second:iter() do seen[i] = batch:item() end
    equal(seen, { 3, 4, 5, 6 })
  end))

  it("has its state only on checkpoint steps, and takes one only before the loop", on("CPU", function()
    local source = make()
    is_true(source:state_dict())
    for i in data.DataExecutor(source, { num_steps = 4, checkpoint_steps = 3 }):iter() do
      if i == 1 then
        raises("this is step 1", function() source:state_dict() end, "runtime")
        raises("the loop over this loader has started", function() source:load_state_dict {} end, "runtime")
      elseif i ~= 2 then
        is_true(source:state_dict())
      end
    end
  end))

  it("needs four methods that agree on strict", on("CPU", function()
    raises("its source has no deaggregate_state_dict", function() make({ deaggregate_state_dict = false }):state_dict() end, "runtime")
    raises("load_state_dict takes 'strict', but deaggregate_state_dict does not", function()
      make({ load_state_dict = function(_, _, options) return options end }):state_dict()
    end, "type")
    local strict
    local source = make {
      load_state_dict = function(_, _, options) strict = options.strict end,
      deaggregate_state_dict = function(_, _, options) return options end,
    }
    source:load_state_dict({}, { strict = false })
    equal(strict, false)
  end))

  it("streams from all workers of all systems on CSX", on(nil, function()
    cstorch.configure { num_csx = 2, num_workers_per_csx = 2 }
    cstorch.backend "CSX"
    local source = make()
    local seen = {}
    local look = cstorch.step_closure(function(batch) seen[#seen + 1] = table.concat(batch:tolist(), " ") end)
    local state
    local keep = cstorch.step_closure(function() state = source:state_dict() end)
    for i, batch in data.DataExecutor(source, { num_steps = 3, checkpoint_steps = 3 }):iter() do
      look(batch)
      if i == 3 then keep() end
    end
    equal(seen, { "1 1", "1 1", "2 2" })
    equal(state, { states = { { at = 2, worker = 0 }, { at = 1, worker = 1 }, { at = 2, worker = 2 }, { at = 1, worker = 3 } } })
  end))

  it("cannot be used again on CSX after a stop between checkpoints", on("CSX", function()
    local source = make()
    local executor = data.DataExecutor(source, { num_steps = 4, checkpoint_steps = 2 })
    leave(executor, function() end)
    executor:close()
    raises("the loader's state is unavailable", function() run(source) end, "runtime")
  end))
end)
