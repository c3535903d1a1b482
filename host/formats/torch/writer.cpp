#include "host/formats/torch/writer.hpp"

#include <libdeflate.h>
#include <zlib.h>

#include <map>

#include "host/base/replaced.hpp"
#include "host/formats/pickle/pickler.hpp"
#include "host/formats/torch/storage_plan.hpp"
#include "host/formats/zip/layout.hpp"

namespace cbk::torch {
namespace {

uint32_t crc_of(std::string_view bytes) {
  return libdeflate_crc32(0, bytes.data(), bytes.size());
}

class ZipFileWriter final : public ShardWriter {
 public:
  ZipFileWriter(const Value& root, const fs::path& target, const WriteOptions& given)
      : ShardWriter(target, given.overwrite) {
    refuse_existing(target, given.overwrite || given.may_exist);
    StoragePlan plan;
    pickle::PicklerOptions options;
    options.store = [&](const Tensor& tensor, const std::string& storage_class, const std::string&) {
      plan.add(tensor, storage_class);
      return pickle::StoredTensor{storage_class, "", 0, 0, {}};
    };
    pickle::rehearse(root, options);
    plan.arrange();
    options.store = [&](const Tensor& tensor, const std::string& storage_class, const std::string& path) {
      return plan.next(tensor, storage_class, path);
    };
    add_members(pickle::dump(root, options), plan);
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
    sums.reserve(members_.size());
    size_t item = 0;
    for (const Member& member : members_) {
      uint32_t sum = member.crc32;
      for (; item < member.end_item; ++item) {
        if (items_[item].checksum == Checksum::crc32)
          sum = static_cast<uint32_t>(
              crc32_combine(sum, crcs.at(item), static_cast<z_off_t>(items_[item].tensor.nbytes())));
      }
      sums.push_back(sum);
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      std::string bytes = layout_.header(i, sums[i]);
      if (const auto content = contents_.find(i); content != contents_.end()) bytes += content->second;
      file_->write(layout_.header_offset(i), as_bytes(bytes));
    }
    file_->write(layout_.directory_offset(), as_bytes(layout_.directory(sums)));
  }

 private:
  /// A member is small content that is known now, or a storage whose items are written by the executor.
  struct Member {
    uint32_t crc32 = 0;     // of the content, of the whole storage if the source has it, or of nothing
    uint32_t end_item = 0;  // its items are those from that of the member before
  };

  void add_members(std::string pickle, StoragePlan& plan) {
    const auto& storages = plan.storages();
    const std::string stem = target().stem().string();
    const std::string top = (stem.empty() ? "archive" : stem) + "/";
    add_content(top + "data.pkl", std::move(pickle));
    add_content(top + "byteorder", "little");
    // Exact sizes: vectors that grow take twice as much, and there may be 100,000 storages.
    const size_t small_files = 3;
    members_.reserve(storages.size() + small_files);
    layout_.reserve(storages.size() + small_files);
    items_.reserve(plan.segment_count());
    offsets_.reserve(plan.segment_count());
    for (size_t key = 0, segment = 0; key < storages.size(); ++key) {
      uint64_t offset = layout_.add(top + "data/" + std::to_string(key), storages[key].bytes);
      const auto crc32 = storages[key].crc32;
      for (; segment < storages[key].end_segment; ++segment)
        add_item(plan.take_segment(), crc32 ? Checksum::none : Checksum::crc32, offset);
      members_.push_back({crc32.value_or(0), static_cast<uint32_t>(items_.size())});
    }
    add_content(top + "version", "3\n");
  }

  void add_content(const std::string& name, std::string content) {
    layout_.add(name, content.size());
    members_.push_back({crc_of(content), static_cast<uint32_t>(items_.size())});
    contents_.emplace(members_.size() - 1, std::move(content));
  }

  void add_item(StoragePlan::Segment segment, Checksum checksum, uint64_t& offset) {
    const uint64_t bytes = segment.tensor.nbytes();
    if (bytes == 0) return;
    items_.push_back({std::move(segment.key), std::move(segment.tensor), checksum});
    offsets_.push_back(offset);
    offset += bytes;
    item_bytes_ += bytes;
  }

  zip::Layout layout_;
  std::vector<Member> members_;
  std::map<size_t, std::string> contents_;  // of the members that are not storages
  std::vector<Item> items_;
  std::vector<uint64_t> offsets_;
  uint64_t item_bytes_ = 0;
  std::vector<std::string> warnings_;
  StagedFile* file_ = nullptr;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options) {
  return std::make_unique<ZipFileWriter>(root, target, options);
}

}  // namespace cbk::torch
