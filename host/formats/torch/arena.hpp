// The values made while a pickle is read. The arena bounds their memory, and takes them apart again without
// recursion and without leaks when the pickle turns out to be bad (cycles, chains a million containers deep).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/value/value.hpp"

namespace cbk::torch {

class Arena {
 public:
  explicit Arena(uint64_t budget) : left_(budget) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// Accounts for memory; beyond the budget it is a `format` error.
  void charge(uint64_t bytes);

  Value sequence(Sequence::Kind kind, std::vector<Value> items = {});
  Value dict(Dict::Kind kind = Dict::Kind::dict);
  Value object(std::string type, std::string repr = {}, Value state = {});
  Value bytes(std::string_view data, bool is_mutable = false);

  /// dict[key] = value for a key that Python could hash; others are `format` errors.
  void set_item(Dict& dict, Value key, Value value);

  /// `root` when it can be handed out: no container holds itself, none nests too deeply, and written out as a
  /// tree it is not far larger than the pickle. Everything that is not part of it is taken apart.
  Value release(const Value& root);

 private:
  template <typename Node>
  Value keep(std::shared_ptr<Node> node, uint64_t bytes);
  void sweep();
  static void clear(const Value& node);

  uint64_t left_;
  std::vector<Value> nodes_;  // every container that may still be in use
  size_t sweep_at_ = 4096;
};

}  // namespace cbk::torch
