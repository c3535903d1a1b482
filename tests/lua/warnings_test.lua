-- Where warnings go.

local cbk = require "cbk"
local warnings = require "cbk.warnings"
local converters = require "cbk.converters"
local optimizers = require "converters.modelzoo.optimizers"
local harness = require "harness"
local tiny = require "tiny"
local describe, it, equal = harness.describe, harness.it, harness.equal

describe("warnings", function()
  it("takes the warnings of what runs inside, and returns what it returns", function()
    local one = warnings.new()
    equal({ one:run(function(a, b) cbk.warn "first" return a, nil, b end, 1, 2) }, { true, 1, nil, 2 })
    equal(one.list, { "first" })
    equal(one:take(), { "first" })
    equal(one.list, {})
  end)

  it("gives way to one inside it, and comes back after an error", function()
    local outer, inner, fine = warnings.new(), warnings.new(), nil
    outer:run(function()
      cbk.warn "before"
      fine = inner:run(function()
        cbk.warn "inside"
        error "stop"
      end)
      cbk.warn "after"
    end)
    equal(fine, false)
    equal(outer.list, { "before", "after" })
    equal(inner.list, { "inside" })
  end)

  it("takes the warnings of the native part, too", function()
    local one = warnings.new()
    one:run(cbk.config.parse, "a: 1\na: 2\n", "yaml")
    equal(#one.list, 1)
    harness.is_true((warnings.quietly(cbk.config.parse, "a: 1\na: 2\n", "yaml")))
  end)
end)

describe("a job", function()
  converters.load()

  it("is made of a route, what is read, and options", function()
    local route = converters.route("gpt2", "cs-2.2", "cs-2.5")
    local source = cbk.dict()
    local input = { source = source, kept = {}, deduplicated = false }
    local job = converters.job(route, input, { seed = 7, is_watched = true, is_stepwise = true })
    equal({ job.src, job.tgt, job.seed, job.keeps_fields, job.path.at_once }, { "cs-2.2", "cs-2.5", 7, true, false })
    harness.is_true(job.source == source and job.trace == job.watch.trace)
    equal(converters.job(route).keeps_fields, false)
  end)

  it("keeps the warnings of its steps to itself where it has a list of its own", function()
    local config = tiny.model(tiny.newest_ways().gpt2)
    config.made_up = 1
    local own, around = warnings.new(), warnings.new()
    local job = converters.job(converters.route("gpt2", "hf", "cs-2.4"), nil, { warnings = own })
    local fine, problem = around:run(converters.convert.config, job, config)
    harness.is_true(fine, tostring(problem))
    equal(around.list, {})
    harness.is_true(#own.list > 0)
  end)
end)

describe("optimizers", function()
  it("take settings by the name of their class", function()
    equal({ optimizers.takes("AdamW", "betas"), optimizers.takes("SGD", "betas") }, { true, false })
    equal(optimizers.takes("Nobody", "lr"), false)
    equal(optimizers.takes(cbk.null, "lr"), false)
  end)

  it("have states that are zero at first, and others", function()
    equal({ optimizers.is_zero_at_first "exp_avg", optimizers.is_zero_at_first "mu_product" }, { true, false })
    equal({ optimizers.may_be_none "momentum_buffer", optimizers.may_be_none "exp_avg" }, { true, false })
  end)
end)
