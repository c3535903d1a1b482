// Collects the refused globals of a pickle, so that one message names all of them.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace cbk::pickle {

class RefusedGlobals {
 public:
  void note(const std::string& global) {
    if (seen_.insert(global).second && names_.size() < 1000) names_.push_back(global);
  }
  [[nodiscard]] bool empty() const { return names_.empty(); }
  /// The `refused` error. `may_be_records`: reading with allow_records may help.
  [[noreturn]] void fail_with_all(bool may_be_records) const;

 private:
  std::vector<std::string> names_;  // in the order of the pickle
  std::set<std::string> seen_;
};

}  // namespace cbk::pickle
