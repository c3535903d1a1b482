#include "host/formats/npy/writer.hpp"

#include "host/base/checksum.hpp"
#include "host/formats/npy/header.hpp"
#include "host/formats/zip/layout.hpp"
#include "host/value/state_dict.hpp"

namespace cbk::npy {
namespace {

bool is_known(DType dtype) {
  return dtype != DType::bfloat16 && !(is_floating(dtype) && size_of(dtype) == 1);
}

std::string header_of(const NamedTensor& named) {
  const Tensor& tensor = named.leaf.as_tensor();
  if (!is_known(tensor.dtype())) {
    fail(Errc::dtype,
         "NumPy has no {}, the dtype of {}: cast it, with --to-dtype float32 (in Lua: t:to \"float32\")",
         name_of(tensor.dtype()), quote(named.name));
  }
  return write_header(tensor.dtype(), tensor.shape());
}

NamedTensor only_tensor(const Value& root, std::string_view format, std::string_view what) {
  std::vector<NamedTensor> tensors = flat_tensors(root, format);
  if (tensors.size() != 1) {
    fail(Errc::value,
         "{} holds one tensor, not {}; choose one with --include (in Lua: give a tree with one){}", what,
         tensors.size(), tensors.size() > 1 ? ", or write an .npz file" : "");
  }
  return std::move(tensors[0]);
}

/// The base of both kinds of writers: warnings, items.
class ArrayWriter : public ShardWriter {
 public:
  using ShardWriter::ShardWriter;
  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

 protected:
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
};

/// One tensor behind a header, which may be empty.
class FileWriter final : public ArrayWriter {
 public:
  FileWriter(const NamedTensor& tensor, std::string header, const fs::path& target, bool overwrite)
      : ArrayWriter(target, overwrite), header_(std::move(header)) {
    items_.push_back({tensor.name, tensor.leaf.as_tensor()});
  }

  [[nodiscard]] uint64_t overhead() const override { return header_.size(); }

  std::vector<Slot> lay_out_in(StagedFile& file) override {
    file.reserve(header_.size() + items_[0].tensor.nbytes());
    file.write(0, as_bytes(header_));
    return {{&file, header_.size()}};
  }

  void finish(const std::vector<uint32_t>& /*crcs*/) override {}

 private:
  std::string header_;
};

class ArchiveWriter final : public ArrayWriter {
 public:
  ArchiveWriter(const Value& root, const fs::path& target, bool overwrite) : ArrayWriter(target, overwrite) {
    const std::vector<NamedTensor> tensors = flat_tensors(root, "npz");
    if (const size_t ties = count_ties(tensors); ties > 0)
      warnings_.push_back(written_as_copies(ties, "npz has no ties"));
    layout_.reserve(tensors.size());
    for (const NamedTensor& named : tensors) {
      const Tensor& tensor = named.leaf.as_tensor();
      headers_.push_back(header_of(named));
      offsets_.push_back(layout_.add(named.name + ".npy", headers_.back().size() + tensor.nbytes()));
      items_.push_back({named.name, tensor, Checksum::crc32});
      item_bytes_ += tensor.nbytes();
    }
  }

  [[nodiscard]] uint64_t overhead() const override { return layout_.total_size() - item_bytes_; }

  std::vector<Slot> lay_out_in(StagedFile& file) override {
    file_ = &file;
    file.reserve(layout_.total_size());
    std::vector<Slot> slots;
    slots.reserve(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) slots.push_back({file_, offsets_[i] + headers_[i].size()});
    return slots;
  }

  void finish(const std::vector<uint32_t>& crcs) override {
    std::vector<uint32_t> sums;
    sums.reserve(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      const uint32_t before = extended(Checksum::crc32, 0, as_bytes(headers_[i]));
      sums.push_back(combined(Checksum::crc32, before, crcs.at(i), items_[i].tensor.nbytes()));
      file_->write(layout_.header_offset(i), as_bytes(layout_.header(i, sums.back()) + headers_[i]));
    }
    file_->write(layout_.directory_offset(), as_bytes(layout_.directory(sums)));
  }

 private:
  zip::Layout layout_;
  std::vector<std::string> headers_;  // of the arrays, as the rest by item
  std::vector<uint64_t> offsets_;     // of the members' content
  uint64_t item_bytes_ = 0;
  StagedFile* file_ = nullptr;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options) {
  const NamedTensor tensor = only_tensor(root, "npy", "an .npy file");
  return std::make_unique<FileWriter>(tensor, header_of(tensor), target, options.overwrite);
}

std::unique_ptr<ShardWriter> make_archive_writer(const Value& root, const fs::path& target,
                                                 const WriteOptions& options) {
  return std::make_unique<ArchiveWriter>(root, target, options.overwrite);
}

std::unique_ptr<ShardWriter> make_raw_writer(const Value& root, const fs::path& target,
                                             const WriteOptions& options) {
  return std::make_unique<FileWriter>(only_tensor(root, "raw", "a file of raw bytes"), "", target,
                                      options.overwrite);
}

}  // namespace cbk::npy
