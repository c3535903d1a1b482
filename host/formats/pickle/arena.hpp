// The values made while a pickle is read. The arena bounds their memory, and takes them apart again without
// recursion and without leaks when the pickle is found to be bad (cycles, chains a million containers deep).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::pickle {

class Arena {
 public:
  /// What is freed before the end is refunded, and everything if nothing is handed out.
  explicit Arena(MemoryBudget& budget) : budget_(budget) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// Accounts for memory that lives as long as the values. Errors: `format`.
  void charge(uint64_t bytes);

  Value sequence(Sequence::Kind kind, std::vector<Value> items = {});
  Value dict(Dict::Kind kind = Dict::Kind::dict);
  Value object(std::string type, std::string repr = {}, Value state = {});
  Value bytes(std::string data, bool is_mutable = false);
  /// A leaf of the tree with a tensor over a storage that is charged elsewhere.
  Value tensor(std::shared_ptr<const TensorLeaf> leaf);
  /// An object that was made outside of the arena, with a tensor as its state.
  Value keep_storage(Value storage);

  /// dict[key] = value for a key that Python could hash; others are `format` errors.
  void set_item(Dict& dict, Value key, Value value);

  /// `root` when it can be handed out: no container holds itself, none nests too deeply, and written out as a
  /// tree it is not far larger than the pickle. Everything that is not part of it is taken apart.
  Value release(const Value& root);

 private:
  /// A container that may still be in use, and what it took when it was made.
  struct Node {
    Value value;
    uint64_t bytes = 0;
  };

  /// Charges `bytes` for the node, beside what it contains.
  Value keep(Value value, uint64_t bytes);
  void sweep();
  void refund(const Node& node);
  static void clear(const Value& node);

  MemoryBudget& budget_;
  uint64_t charged_ = 0;  // of the budget, by this arena
  std::vector<Node> nodes_;
  size_t sweep_at_ = 4096;
};

}  // namespace cbk::pickle
