// One writer, written by this process alone.
#pragma once

#include <vector>

#include "host/base/transaction.hpp"
#include "host/streaming/write_all.hpp"

namespace cbk {

inline std::vector<LostValues> write_one(Writer& writer, const StreamingOptions& options = {}) {
  Transaction transaction;
  return write_all({&writer}, options, transaction).lost.at(0);
}

}  // namespace cbk
