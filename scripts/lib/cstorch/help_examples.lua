-- An example for every public function and class of cstorch, as it may be typed: `model` is a module, `opt` its optimizer, `x` a batch of
-- inputs [2, 4], `labels` its classes, `batches` what a worker gives. tests/lua/help_examples_test.lua runs all of them.

local examples = {}

local function add(prefix, list)
  for name, example in pairs(list) do examples[prefix .. name] = example end
end

add("cstorch.", {
  -- tensors
  tensor = 'cstorch.tensor({ 1, 2, 3 }, { requires_grad = true })',
  zeros = 'cstorch.zeros { 2, 3 }',
  ones = 'cstorch.ones({ 2, 3 }, { dtype = "bfloat16" })',
  full = 'cstorch.full({ 2, 3 }, 0.5)',
  zeros_like = 'cstorch.zeros_like(x)',
  ones_like = 'cstorch.ones_like(x)',
  full_like = 'cstorch.full_like(x, 0.5)',
  arange = 'cstorch.arange(0, 10, 2)',
  rand = 'cstorch.rand { 2, 3 }',
  randn = 'cstorch.randn { 2, 3 }',
  randint = 'cstorch.randint(0, 4, { 2 })  -- 4 is not among them',
  manual_seed = 'cstorch.manual_seed(1)',
  cat = 'cstorch.cat({ x, x }, 0)',
  stack = 'cstorch.stack { x, x }',
  where = 'cstorch.where(x:gt(0), x, cstorch.zeros_like(x))',
  is_tensor = 'cstorch.is_tensor(x)',
  value = 'cstorch.value(model(x):sum())  -- a Lua number',
  items = 'for name, parameter in cstorch.items(model:state_dict()) do print(name, parameter) end',
  no_grad = 'cstorch.no_grad(function() return model(x) end)',
  is_grad_enabled = 'cstorch.is_grad_enabled()',
  check = 'cstorch.check(x:dim() == 2, "value", "expected 2 dims, found %d", x:dim())',
  on_warning = 'cstorch.on_warning(function(message) print(message) end)',

  -- steps and runs
  backend = 'cstorch.backend("CPU")',
  use_cs = 'cstorch.use_cs()',
  configure = 'cstorch.configure { checkpoint_steps = 100 }',
  compile = 'compiled = cstorch.compile(model, { backend = "CPU" })',
  compile_step = 'step = cstorch.compile_step(function(batch) return model(batch):sum() end)',
  trace = 'step = cstorch.trace(function(batch) return model(batch):sum() end); step(x)',
  formula = 'double = cstorch.formula(function(a) return a * 2 end, x)',
  lazily = 'cstorch.lazily(function() return { sum = x + x } end)',
  step_closure = 'report = cstorch.step_closure(function(loss) print(loss:item()) end)',
  checkpoint_closure = 'save = cstorch.checkpoint_closure(function(step) cstorch.save(model:state_dict(), step .. ".mdl") end)',
  run_step_closures = 'cstorch.run_step_closures()',
  current_executor = 'cstorch.current_executor()  -- nil outside of a run',
  save = 'cstorch.save({ model = model:state_dict() }, "checkpoint.mdl")',
  load = 'model:load_state_dict(cstorch.load("start.mdl").model)',
  summarize_scalar = 'cstorch.summarize_scalar("loss", 0.5)',
  summarize_tensor = 'cstorch.summarize_tensor("inputs", x)',
  save_summaries = 'cstorch.save_summaries(cstorch.utils.SummaryWriter { log_dir = "logs" }, 1)',
})

add("cstorch.amp.", {
  GradScaler = 'scaler = cstorch.amp.GradScaler { loss_scale = "dynamic" }',
  optimizer_step = 'cstorch.amp.optimizer_step(model(x):sum(), opt, nil, { max_gradient_norm = 1 })',
})

add("cstorch.testing.", { reset = 'if cstorch.current_executor() then cstorch.testing.reset() end' })

add("cstorch.distributed.", {
  get_rank = 'print(cstorch.distributed.get_rank())',
  get_world_size = 'print(cstorch.distributed.get_world_size())',
})

add("cstorch.sparse.", { Static = 'cstorch.sparse.Static { sparsity = 0.5 }' })

add("cstorch.utils.", {
  SummaryWriter = 'writer = cstorch.utils.SummaryWriter { log_dir = "logs" }',
  SummaryReader = 'reader = cstorch.utils.SummaryReader "logs"',
  StepRange = 'cstorch.utils.StepRange(0, 100, { step = 10 }):steps()',
  Progress = 'progress = cstorch.utils.Progress { batch_size = 2 }',
})

add("cstorch.utils.data.", {
  DataLoader = 'loader = cstorch.utils.data.DataLoader(batches, { num_steps = 10, batch_size = 2 })',
  DataExecutor = 'executor = cstorch.utils.data.DataExecutor(loader, { num_steps = 10 })',
  ShardedSampler = 'sampler = cstorch.utils.data.ShardedSampler { dataset_size = 100, batch_size = 10 }',
  compute_num_steps = 'cstorch.utils.data.compute_num_steps(loader, { num_steps = 10 })',
  get_worker_state = 'cstorch.utils.data.get_worker_state()',
})

add("cstorch.nn.", {
  Module = 'Net = cstorch.nn.Module:subclass "Net"; function Net:forward(x) return x * 2 end',
  Parameter = 'cstorch.nn.Parameter(cstorch.zeros { 4 })',
  Linear = 'cstorch.nn.Linear(4, 8)(x)',
  Embedding = 'cstorch.nn.Embedding(100, 8)(labels)',
  LayerNorm = 'cstorch.nn.LayerNorm(4)(x)',
  RMSNorm = 'cstorch.nn.RMSNorm(4)(x)',
  Dropout = 'cstorch.nn.Dropout(0.1)(x)',
  ReLU = 'cstorch.nn.ReLU()(x)',
  SiLU = 'cstorch.nn.SiLU()(x)',
  Tanh = 'cstorch.nn.Tanh()(x)',
  GELU = 'cstorch.nn.GELU { approximate = "tanh" }(x)',
  Identity = 'cstorch.nn.Identity()(x)',
  Sequential = 'cstorch.nn.Sequential(cstorch.nn.Linear(4, 8), cstorch.nn.ReLU(), cstorch.nn.Linear(8, 2))',
  ModuleList = 'cstorch.nn.ModuleList { cstorch.nn.Linear(4, 4), cstorch.nn.Linear(4, 4) }',
  MultiheadAttention = 'cstorch.nn.MultiheadAttention(8, 2, { causal = true })',
  TransformerDecoderLayer = 'cstorch.nn.TransformerDecoderLayer(8, 2, { norm = "rmsnorm" })',
  TransformerEncoderLayer = 'cstorch.nn.TransformerEncoderLayer(8, 2)',
  CrossEntropyLoss = 'cstorch.nn.CrossEntropyLoss()(x, labels)',
  MSELoss = 'cstorch.nn.MSELoss()(x, x * 2)',
})

add("cstorch.nn.functional.", {
  linear = 'cstorch.nn.functional.linear(x, cstorch.randn { 8, 4 })',
  embedding = 'cstorch.nn.functional.embedding(labels, cstorch.randn { 10, 4 })',
  relu = 'cstorch.nn.functional.relu(x)',
  gelu = 'cstorch.nn.functional.gelu(x, { approximate = "tanh" })',
  silu = 'cstorch.nn.functional.silu(x)',
  tanh = 'cstorch.nn.functional.tanh(x)',
  sigmoid = 'cstorch.nn.functional.sigmoid(x)',
  softmax = 'cstorch.nn.functional.softmax(x, -1)',
  log_softmax = 'cstorch.nn.functional.log_softmax(x, -1)',
  dropout = 'cstorch.nn.functional.dropout(x, { p = 0.1 })',
  layer_norm = 'cstorch.nn.functional.layer_norm(x, cstorch.ones { 4 })',
  rms_norm = 'cstorch.nn.functional.rms_norm(x, cstorch.ones { 4 })',
  cross_entropy = 'cstorch.nn.functional.cross_entropy(x, labels)',
  mse_loss = 'cstorch.nn.functional.mse_loss(x, x * 2)',
  binary_cross_entropy_with_logits = 'cstorch.nn.functional.binary_cross_entropy_with_logits(x, cstorch.ones_like(x))',
  scaled_dot_product_attention = 'q = cstorch.randn { 1, 2, 3, 4 }; '
    .. 'cstorch.nn.functional.scaled_dot_product_attention(q, q, q, { causal = true })',
})

add("cstorch.nn.utils.", {
  clip_grad_norm_ = 'cstorch.nn.utils.clip_grad_norm_(model:parameters(), 1)',
  clip_grad_value_ = 'cstorch.nn.utils.clip_grad_value_(model:parameters(), 0.5)',
})

local metric = 'metric = cstorch.metrics.%s("%s"%s)'
for name, options in pairs {
  AUCMetric = '', AccuracyMetric = '', PerplexityMetric = '', MeanMetric = '', DiceCoefficientMetric = ', { num_classes = 4 }',
  FBetaScoreMetric = ', { num_classes = 4, beta = 2 }', MeanIOUMetric = ', { num_classes = 4 }',
  MeanPerClassAccuracyMetric = ', { num_classes = 4 }', PrecisionAtKMetric = ', { k = 5 }', RecallAtKMetric = ', { k = 5 }',
} do
  examples["cstorch.metrics." .. name] = metric:format(name, name:gsub("Metric$", ""):lower(), options)
end

add("cstorch.metrics.", {
  Metric = 'Largest = cstorch.metrics.Metric:subclass "Largest"  -- with reset, update and compute',
  compute_all_metrics = 'cstorch.metrics.compute_all_metrics()',
  get_all_metrics = 'cstorch.metrics.get_all_metrics()',
})

for _, name in ipairs { "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Lion", "NAdam", "RAdam",
  "RMSprop", "Rprop", "SGD" } do
  examples["cstorch.optim." .. name] = ("opt = cstorch.optim.%s(model:parameters(), { lr = 0.01 })"):format(name)
end

add("cstorch.optim.", {
  Muon = 'opt = cstorch.optim.Muon({ cstorch.nn.Parameter(x) }, { lr = 0.02 })  -- of matrices',
  Optimizer = 'Plain = cstorch.optim.Optimizer:subclass "Plain"  -- with step',
  AdamBase = 'Mine = cstorch.optim.AdamBase:subclass "Mine"  -- with other defaults',
  configure_optimizer = 'opt = cstorch.optim.configure_optimizer { optimizer_type = "SGD", params = model:parameters(), lr = 0.1 }',
  configure_lr_scheduler = 'cstorch.optim.configure_lr_scheduler(opt, { { scheduler = "Linear", initial_learning_rate = 0, '
    .. 'end_learning_rate = 0.1, total_iters = 10 } })',
  configure_scheduler = 'cstorch.optim.configure_scheduler(opt, { ConstantLR = { learning_rate = 0.1 } })',
  configure_param_groups = 'cstorch.optim.configure_param_groups(model, { weight_decay = 0.1 })',
})

-- Schedules by their names without family, with what they need; what is called val there is a learning rate in LR.
local schedules = {
  Constant = '{ val = 0.1 }',
  CosineAnnealing = '{ initial_val = 0.1, T_max = 100 }',
  CosineAnnealingWarmRestarts = '{ initial_val = 0.1, T_0 = 10 }',
  CosineDecay = '{ initial_val = 0.1, end_val = 0.01, total_iters = 100 }',
  Cyclic = '{ base_val = 0.01, max_val = 0.1, step_size_up = 10 }',
  Exponential = '{ initial_val = 0.1, decay_rate = 0.5, total_iters = 100 }',
  InverseExponentialTimeDecay = '{ initial_val = 0.1, step_exponent = 1, decay_rate = 0.5, total_iters = 100 }',
  InverseSquareRootDecay = '{ initial_val = 0.1, warmup_steps = 10 }',
  Lambda = '{ initial_val = 0.1 }  -- a class that extends it has set_lr_lambda',
  Linear = '{ initial_val = 0, end_val = 0.1, total_iters = 100 }',
  MultiStep = '{ initial_val = 0.1, gamma = 0.5, milestones = { 10, 20 } }',
  Multiplicative = '{ initial_val = 0.1, coefficient = 0.9 }',
  OneCycle = '{ initial_val = 0.01, max_val = 0.1, total_steps = 100 }',
  PiecewiseConstant = '{ vals = { 0.1, 0.01 }, milestones = { 10 } }',
  Polynomial = '{ initial_val = 0.1, end_val = 0.01, total_iters = 100, power = 2 }',
  Step = '{ initial_val = 0.1, step_size = 10, gamma = 0.5 }',
  Chained = '{ schedulers = { first, second } }',
  Sequential = '{ schedulers = { first, second }, milestones = { 10 } }',
  ScalePerParam = '{ scheduler = first }',
}

local RATES = { val = "learning_rate", initial_val = "initial_learning_rate", end_val = "end_learning_rate", base_val = "base_lr",
  max_val = "max_lr", vals = "learning_rates" }

for name, options in pairs(schedules) do
  local general = ("cstorch.optim.scheduler.%sScheduler"):format(name)
  examples[general] = ('Mine = %s:subclass "Mine"; Mine.param_group_key = "momentum"'):format(general)
  for module, suffix in pairs { lr_scheduler = "LR", weight_decay_scheduler = "WD" } do
    local own = suffix == "LR" and options:gsub("[%w_]+", RATES) or options
    local class = ("cstorch.optim.%s.%s%s"):format(module, name, suffix)
    if name == "Chained" then
      examples[class] = ("schedule = %s %s"):format(class, own)
    else
      examples[class] = ("schedule = %s(opt, %s"):format(class, (own:gsub("}$", "})"):gsub("}  %-%-", "})  --")))
    end
  end
end

examples["cstorch.optim.lr_scheduler.ChainedScheduler"] = examples["cstorch.optim.lr_scheduler.ChainedLR"]
examples["cstorch.optim.lr_scheduler.CosineAnnealingWarmRestarts"] = examples["cstorch.optim.lr_scheduler.CosineAnnealingWarmRestartsLR"]
examples["cstorch.optim.scheduler.Scheduler"] = 'Mine = cstorch.optim.scheduler.Scheduler:subclass "Mine"  -- of any option'
examples["cstorch.optim.lr_scheduler.LRScheduler"] = 'Mine = cstorch.optim.lr_scheduler.LRScheduler:subclass "Mine"  -- with a formula'
examples["cstorch.optim.weight_decay_scheduler.WeightDecayScheduler"] =
  'Mine = cstorch.optim.weight_decay_scheduler.WeightDecayScheduler:subclass "Mine"  -- with a formula'

return examples
