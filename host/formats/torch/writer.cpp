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
    PicklerOptions options;
    options.store = [this](const Tensor& tensor, const std::string& storage_class, const std::string& path) {
      plan_.add(tensor, storage_class, path);
      return StoredTensor{storage_class, "", 0, 0, {}};
    };
    pickle(root, options);
    plan_.arrange();
    options.store = [this](const Tensor&, const std::string&, const std::string&) { return plan_.next(); };
    pickle_ = pickle(root, options);
    add_members();
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
      for (size_t item : member.items) {
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
    std::vector<size_t> items;
  };

  void add_members() {
    const std::string stem = target().stem().string();
    const std::string top = (stem.empty() ? "archive" : stem) + "/";
    add_content(top + "data.pkl", pickle_);
    add_content(top + "byteorder", "little");
    for (size_t key = 0; key < plan_.storages().size(); ++key) {
      add_storage(top + "data/" + std::to_string(key), plan_.storages()[key]);
    }
    add_content(top + "version", "3\n");
  }

  void add_content(const std::string& name, const std::string& content) {
    layout_.add(name, content.size());
    members_.push_back({content, crc_of(content), {}});
  }

  void add_storage(const std::string& name, const StoragePlan::PlannedStorage& storage) {
    uint64_t offset = layout_.add(name, storage.bytes);
    Member member{{}, storage.crc32.value_or(0), {}};
    for (const StoragePlan::Segment& segment : storage.segments) {
      if (segment.tensor.numel() == 0) continue;
      member.items.push_back(items_.size());
      items_.push_back({segment.key, segment.tensor, storage.crc32 ? Checksum::none : Checksum::crc32});
      offsets_.push_back(offset);
      offset += segment.tensor.nbytes();
      item_bytes_ += segment.tensor.nbytes();
    }
    members_.push_back(std::move(member));
  }

  StoragePlan plan_;
  std::string pickle_;
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
