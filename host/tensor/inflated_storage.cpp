#include "host/tensor/inflated_storage.hpp"

#include <algorithm>
#include <atomic>
#include <list>

#include "host/base/interrupt.hpp"
#include "host/tensor/block_cache.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk {
namespace {

constexpr uint64_t inflated_size = 1ULL << 20;

using StreamPtr = std::unique_ptr<InflateStream>;

/// Interrupted streams that may be continued: the latest few of the process.
class LeftStreams {
 public:
  StreamPtr take(uint64_t storage) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(streams_, storage, [](const auto& stream) { return stream.first; });
    if (found == streams_.end()) return nullptr;
    StreamPtr stream = std::move(found->second);
    streams_.erase(found);
    return stream;
  }

  void leave(uint64_t storage, StreamPtr stream) {
    const std::lock_guard lock(mutex_);
    streams_.emplace_front(storage, std::move(stream));
    if (streams_.size() > most) streams_.pop_back();
  }

 private:
  static constexpr size_t most = 16;  // each takes 40 KB
  std::mutex mutex_;
  std::list<std::pair<uint64_t, StreamPtr>> streams_;
};

LeftStreams& left_streams() {
  static LeftStreams instance;
  return instance;
}

class InflatedStorage final : public PackedStorage {
 public:
  InflatedStorage(std::shared_ptr<const MappedFile> file, ByteView packed, Deflated form, uint64_t size,
                  std::string what)
      : file_(std::move(file)), packed_(packed), form_(form), size_(size), what_(std::move(what)) {}
  ~InflatedStorage() override { forget(); }

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] uint64_t stored_size() const override { return packed_.size(); }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const BlockCache::Block block = this->block(offset / inflated_size);
      const ByteView part = ByteView(*block).subspan(offset % inflated_size);
      const size_t count = std::min(part.size(), out.size());
      std::copy_n(part.begin(), count, out.begin());
      used_ += count;
      out = out.subspan(count);
      offset += count;
    }
  }

  void drop(uint64_t offset, uint64_t length) const noexcept override {
    if (offset + length >= size_) forget();
  }

  [[nodiscard]] Place place() const override {
    const auto offset = static_cast<uint64_t>(packed_.data() - file_->bytes().data());
    return {file_->path().string(), file_->begin() + offset};
  }
  void add_files(SourceFiles& files) const override { files.insert(file_); }

 private:
  void forget() const noexcept {
    BlockCache::instance().forget(id_);
    (void)left_streams().take(id_);
  }

  [[nodiscard]] BlockCache::Block block(uint64_t number) const {
    if (auto known = BlockCache::instance().find({id_, number})) return known;
    const std::lock_guard lock(mutex_);  // who comes next finds what this one unpacked
    if (auto known = BlockCache::instance().find({id_, number})) return known;
    StreamPtr stream = left_streams().take(id_);
    if (!stream || stream->position() > number * inflated_size)
      stream = std::make_unique<InflateStream>(packed_, form_);
    BlockCache::Block block;
    for (uint64_t next = stream->position() / inflated_size; next <= number; ++next) {
      check_interrupt();
      refuse_far_jumps();
      block = next_block(*stream);
      if (next < unpacked_) again_ += block->size();
      unpacked_ = std::max(unpacked_, next + 1);
      BlockCache::instance().put({id_, next}, block);
    }
    if (stream->position() < size_) left_streams().leave(id_, std::move(stream));
    return block;
  }

  /// Fails for far jumps back, which unpack again from the beginning: a transposed tensor would take hours.
  void refuse_far_jumps() const {
    constexpr uint64_t most = 4ULL << 30;  // some 15 seconds
    if (again_ < most + 8 * used_) return;
    throw Error(
        Errc::unsupported,
        {.problem = fmt::format("{} is compressed, and what is read lies scattered over its {}: they were "
                                "unpacked again and again, {} together",
                                what_, format_size(size_), format_size(again_)),
         .advice = "save it again without compression, as torch.save and numpy.savez do"});
  }

  [[nodiscard]] BlockCache::Block next_block(InflateStream& stream) const {
    Bytes bytes(std::min(inflated_size, size_ - stream.position()));
    std::byte beyond{};
    const bool is_whole = within(what_, [&] {
      return stream.read(bytes) == bytes.size() &&
             (stream.position() < size_ || stream.read({&beyond, 1}) == 0);
    });
    if (!is_whole) fail(Errc::format, "{} does not unpack to its {} bytes", what_, size_);
    return std::make_shared<const Bytes>(std::move(bytes));
  }

  std::shared_ptr<const MappedFile> file_;
  ByteView packed_;
  Deflated form_;
  uint64_t size_;
  std::string what_;
  uint64_t id_ = BlockCache::instance().new_storage();
  mutable std::mutex mutex_;                // of whoever unpacks
  mutable uint64_t unpacked_ = 0;           // blocks
  mutable uint64_t again_ = 0;              // bytes
  mutable std::atomic<uint64_t> used_ = 0;  // bytes that were read
};

}  // namespace

StoragePtr inflated_storage(std::shared_ptr<const MappedFile> file, ByteView packed, Deflated form,
                            uint64_t size, std::string what) {
  return std::make_shared<InflatedStorage>(std::move(file), packed, form, size, std::move(what));
}

}  // namespace cbk
