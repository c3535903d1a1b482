// The values made while a pickle is read. The arena bounds their memory, and frees them without recursion and
// without leaks if the pickle is bad (cycles, chains a million containers deep).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::pickle {

class Arena {
 public:
  /// Memory freed before the end is refunded, and all of it if no value is returned.
  explicit Arena(MemoryBudget& budget) : budget_(budget) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  /// Charges memory that lives as long as the values. Errors: `format`.
  void charge(uint64_t bytes);

  Value sequence(Sequence::Kind kind, std::vector<Value> items = {});
  Value dict(Dict::Kind kind = Dict::Kind::dict);
  Value object(std::string type, std::string repr = {}, Value state = {});
  Value bytes(std::string data, bool is_mutable = false);
  /// A leaf of the tree with a tensor over a storage that is charged elsewhere.
  Value tensor(std::shared_ptr<const TensorLeaf> leaf);
  /// An object made outside the arena, with a tensor as its state.
  Value keep_storage(Value storage);

  /// dict[key] = value for a key that Python could hash; others are `format` errors.
  void set_item(Dict& dict, Value key, Value value);
  /// Says which tensor or container was replaced, because its key was set again; "" if none was.
  [[nodiscard]] std::string replaced() const;

  /// Frees what nothing refers to of a container that was made lately, and of those made since then: it is
  /// used while memory is at hand for the next one.
  void free_since(const void* identity);

  /// `root`, if it may be returned: no container contains itself, none nests too deeply, and written as a
  /// tree it is not far larger than the pickle. Everything that is not part of it is freed.
  Value release(const Value& root);

 private:
  /// A container that may still be in use, and the memory that it took when it was made.
  struct Node {
    Value value;
    uint64_t bytes = 0;
  };

  /// Charges `bytes` for the node, besides its content.
  Value keep(Value value, uint64_t bytes);
  void sweep();
  void refund(const Node& node);
  static void clear(const Value& node);

  MemoryBudget& budget_;
  uint64_t charged_ = 0;  // of the budget, by this arena
  std::vector<Node> nodes_;
  size_t sweep_at_ = 4096;
  std::string first_replaced_;
  size_t replaced_count_ = 0;
};

}  // namespace cbk::pickle
