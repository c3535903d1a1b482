// Tensor-parallel parts in which a rule for each weight says how they are joined: Meta's LLaMA and Megatron.
// Format: FORMAT.md.
#pragma once

#include "host/formats/ranks/parts.hpp"

namespace cbk::ranks {

/// Meta's consolidated.NN.pth, in the order of their numbers. Errors: `unsupported` for a weight without a
/// rule whose parts are not all the same.
Value join_meta(const std::vector<Part>& parts);

/// Fails (`unsupported`) if the run of a Megatron file had parallelism of experts: its folders have names
/// like those of pipeline stages.
void check_experts(const Part& part);

/// Megatron's model_optim_rng.pt of all mp_rank_TT[_PPP]: `stages[p][t]` is of pipeline stage p and tensor
/// rank t. Layers get their numbers in the whole model. The states of the optimizer are not joined: an
/// unreadable value is in their place.
Value join_megatron(std::vector<std::vector<Part>> stages);

}  // namespace cbk::ranks
