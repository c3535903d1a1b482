// Joins recorded element-wise kernels into chains that pass over memory once.
#pragma once

#include <vector>

#include "host/compute/kernel.hpp"

namespace cbk::compute {

inline constexpr int no_condition = -1;

struct RecordedStep {
  KernelPtr kernel;
  int condition = no_condition;  // that must hold for it to run
  BufferPtr flag;                // of that condition
};

/// The same work in fewer kernels. Neighbours over one domain that share data are joined; a kernel that
/// neither needs nor disturbs the chain before it is moved in front of that. What is written only for readers
/// within a chain is not written at all, unless it is among `kept` or had memory before.
std::vector<RecordedStep> fuse(std::vector<RecordedStep> steps, const std::vector<BufferPtr>& kept);

}  // namespace cbk::compute
