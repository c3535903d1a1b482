// Folders of DeepSpeed's ZeRO, stages 1 to 3: each rank has a piece of the float32 weights and moments, flat.
// Format: FORMAT.md.
#pragma once

#include "host/formats/ranks/parts.hpp"

namespace cbk::ranks {

/// `models`: of the files *_model_states.pt, `optimizers`: of *_optim_states.pt, both by ranks. The tree is
/// that of the model's file of rank 0, with float32 weights and buffers in `module` and the moments in
/// `optimizer` under the names of their parameters. Errors: `format` for another number of files than the
/// partitions, or elements that are missing or left over; `unsupported` for tensor-parallel parts.
Value join_zero(std::vector<Part> models, std::vector<Part> optimizers, MemoryBudget& memory);

/// Whether the model's files of other ranks have parts, too: of parameters that are not trained, in stage 3.
bool needs_all_models(const Part& model);

}  // namespace cbk::ranks
