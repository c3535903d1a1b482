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

/// The same work in fewer kernels. Adjacent kernels over one domain that share data are joined. A kernel that
/// neither needs nor affects the chain before it is moved in front of the chain. Values that are read only
/// within a chain are not written at all, unless they are in `kept` or had memory before.
std::vector<RecordedStep> fuse(std::vector<RecordedStep> steps, const std::vector<BufferPtr>& kept);

}  // namespace cbk::compute
