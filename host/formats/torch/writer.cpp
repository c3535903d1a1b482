#include "host/formats/torch/writer.hpp"

#include <libdeflate.h>
#include <zlib.h>

#include "host/base/replaced.hpp"
#include "host/formats/torch/pickler.hpp"
#include "host/formats/torch/storage_plan.hpp"
#include "host/formats/torch/zip_writer.hpp"

namespace cbk::torch {
namespace {

uint32_t crc_of(std::string_view bytes) {
  return libdeflate_crc32(0, bytes.data(), bytes.size());
}

class ZipFileWriter final : public ShardWriter {
 public:
  ZipFileWriter(const Value& root, const fs::path& target, bool overwrite) : ShardWriter(target, overwrite) {
    refuse_existing(target, overwrite);
    StoragePlan plan;
    PicklerOptions options;
    options.store = [&](const Tensor& tensor, const std::string& storage_class, const std::string& path) {
      plan.add(tensor, storage_class, path);
      return StoredTensor{storage_class, "", 0, 0, {}};
    };
    pickle(root, options);
    plan.arrange();
    options.store = [&](const Tensor&, const std::string&, const std::string&) { return plan.next(); };
    std::string content = pickle(root, options);
    add_members(std::move(content), plan.take_storages());
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return layout_.total_size() - item_bytes_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

  std::vector<Slot> lay_out_in(StagedFile& file) override {
    file_ = &file;
    file_->reserve(layout_.total_size());
    std::vector<Slot> slots;
    for (uint64_t offset : offsets_) slots.push_back({file_, offset});
    return slots;
  }

  void finish(const std::vector<uint32_t>& crcs) override {
    std::vector<uint32_t> sums;
    for (const Member& member : members_) {
      uint32_t sum = member.crc32;
      for (size_t item = member.first_item; item < member.end_item; ++item) {
        if (items_[item].checksum == Checksum::crc32)
          sum = static_cast<uint32_t>(
              crc32_combine(sum, crcs.at(item), static_cast<z_off_t>(items_[item].tensor.nbytes())));
      }
      sums.push_back(sum);
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      file_->write(layout_.header_offset(i), as_bytes(layout_.header(i, sums[i]) + members_[i].content));
    }
    file_->write(layout_.directory_offset(), as_bytes(layout_.directory(sums)));
  }

 private:
  /// A member is small content that is known now, or a storage whose items are written by the executor.
  struct Member {
    std::string content;
    uint32_t crc32 = 0;  // of the content, of the whole storage if the source tells it, or of nothing
    size_t first_item = 0;
    size_t end_item = 0;
  };

  void add_members(std::string pickle, const std::vector<StoragePlan::PlannedStorage>& storages) {
    const std::string stem = target().stem().string();
    const std::string top = (stem.empty() ? "archive" : stem) + "/";
    add_content(top + "data.pkl", std::move(pickle));
    add_content(top + "byteorder", "little");
    // Exact sizes: vectors that grow take twice as much, and there may be 100,000 storages.
    const size_t small_files = 3;
    members_.reserve(storages.size() + small_files);
    layout_.reserve(storages.size() + small_files);
    items_.reserve(storages.size());
    offsets_.reserve(storages.size());
    for (size_t key = 0; key < storages.size(); ++key) {
      add_storage(top + "data/" + std::to_string(key), storages[key]);
    }
    add_content(top + "version", "3\n");
  }

  void add_content(const std::string& name, std::string content) {
    layout_.add(name, content.size());
    const uint32_t crc32 = crc_of(content);
    members_.push_back({std::move(content), crc32});
  }

  void add_storage(const std::string& name, const StoragePlan::PlannedStorage& storage) {
    uint64_t offset = layout_.add(name, storage.bytes);
    Member member{{}, storage.crc32.value_or(0), items_.size()};
    for (const StoragePlan::Segment& segment : storage.segments) {
      if (segment.tensor.numel() == 0) continue;
      items_.push_back({segment.key, segment.tensor, storage.crc32 ? Checksum::none : Checksum::crc32});
      offsets_.push_back(offset);
      offset += segment.tensor.nbytes();
      item_bytes_ += segment.tensor.nbytes();
    }
    member.end_item = items_.size();
    members_.push_back(std::move(member));
  }

  ZipLayout layout_;
  std::vector<Member> members_;
  std::vector<Item> items_;
  std::vector<uint64_t> offsets_;
  uint64_t item_bytes_ = 0;
  std::vector<std::string> warnings_;
  StagedFile* file_ = nullptr;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target, bool overwrite) {
  return std::make_unique<ZipFileWriter>(root, target, overwrite);
}

}  // namespace cbk::torch
