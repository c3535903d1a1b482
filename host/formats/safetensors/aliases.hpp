// Other names of tensors. A safetensors file stores no tensor twice: its writer keeps one name of tied
// tensors, and may record the others in the metadata, as other name = kept name
// (safetensors.torch.save_model).
#pragma once

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::safetensors {

/// Adds the other names to the tensors, as ties, and removes these records from the metadata, because the
/// tree now contains them. Anyone may write anything there, so a record counts only if it names a tensor of
/// the file, and a new name that the file does not have.
void take_aliases(Dict& tensors, Value& metadata, MemoryBudget& memory);

}  // namespace cbk::safetensors
