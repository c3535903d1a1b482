// Other names of tensors. A safetensors file holds no tensor twice: its writer keeps one name of tied
// tensors, and may note the others in the metadata, as other name = kept name (safetensors.torch.save_model).
#pragma once

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::safetensors {

/// Adds the other names to the tensors, as ties, and takes these notes out of the metadata: the tree says it
/// all then. Anyone may write anything there. A note counts if it names a tensor of the file, and a name that
/// the file does not have.
void take_aliases(Dict& tensors, Value& metadata, MemoryBudget& memory);

}  // namespace cbk::safetensors
