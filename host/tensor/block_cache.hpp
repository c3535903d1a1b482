// A cache of decoded pieces of compressed storages; the least recently used are dropped first. There is one
// for the process, so that its memory is bounded for any number of storages. Thread-safe.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "host/base/bytes.hpp"

namespace cbk {

class BlockCache {
 public:
  using Block = std::shared_ptr<const Bytes>;
  struct Key {
    uint64_t storage = 0;
    uint64_t number = 0;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
  };

  static BlockCache& instance();
  /// A unique number for a storage with cached blocks.
  uint64_t new_storage();

  /// nullptr if it is not (or no longer) cached.
  Block find(Key key);
  void put(Key key, Block block);
  void forget(uint64_t storage);

 private:
  using Entries = std::list<std::pair<Key, Block>>;
  using Places = std::map<Key, Entries::iterator>;
  static constexpr uint64_t limit = uint64_t{32} << 20;
  static constexpr uint64_t overhead = 256;  // of a block: its nodes, and what owns it

  static uint64_t cost(const Block& block) { return block->size() + overhead; }

  Places::iterator erase(Places::iterator place);

  std::mutex mutex_;
  Entries entries_;
  Places places_;
  uint64_t total_ = 0;
  uint64_t storages_ = 0;
};

}  // namespace cbk
