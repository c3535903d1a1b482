// Whole modules in a pickle, as torch.save(model) writes them: shown as their state dicts.
#pragma once

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::torch {

/// The tree with a dict in place of each torch.nn.Module: its parameters, persistent buffers and modules
/// under their names, so that the dotted names are those of its state dict. A module's other attributes are
/// left out. Containers of the tree are changed.
Value with_state_dicts(const Value& root, MemoryBudget& memory);

}  // namespace cbk::torch
