#include "host/formats/safetensors/writer.hpp"

#include <algorithm>

#include "host/base/utf8.hpp"
#include "host/formats/safetensors/header.hpp"
#include "host/value/kind.hpp"
#include "host/value/state_dict.hpp"

namespace cbk::safetensors {
namespace {

void check_metadata(const Value& metadata) {
  if (metadata.is_none()) return;
  for (const auto& [key, value] : metadata.as_dict().entries()) {
    if (!key.is(Value::Kind::string) || !value.is(Value::Kind::string)) {
      fail(Errc::value, "the metadata of safetensors is text: {} is {}", quote(key_text(key)), a_kind(value));
    }
    if (!is_strict_utf8(key.as_string()) || !is_strict_utf8(value.as_string()))
      fail(Errc::value, "the metadata of safetensors is Unicode text: {} is not", quote(key_text(key)));
  }
}

/// Names must be text that JSON can hold, and not the reserved name.
void check_name(const std::string& name) {
  if (name == "__metadata__") fail(Errc::value, "a tensor of safetensors cannot be named '__metadata__'");
  if (!is_strict_utf8(name)) fail(Errc::value, "the name {} is not Unicode text", quote(name));
}

std::vector<NamedTensor> checked_tensors(const Value& root) {
  std::vector<NamedTensor> tensors = flat_tensors(root, "safetensors");
  std::vector<std::string> unknown;
  for (const NamedTensor& tensor : tensors) {
    check_name(tensor.name);
    const DType dtype = tensor.leaf.as_tensor().dtype();
    if (find(dtype) == nullptr) unknown.push_back(fmt::format("{} ({})", quote(tensor.name), name_of(dtype)));
  }
  if (!unknown.empty()) fail(Errc::dtype, "safetensors has no such dtype: {}", listed(unknown));
  return tensors;
}

/// The transformers library loads a file only if its metadata names the framework of its tensors. The origin
/// of another file, whose metadata was given, is not that of this one.
Value completed(const Value& metadata, const std::string& origin) {
  Value out = Value::dict();
  if (metadata.is_none()) {
    out.as_dict().set("format", "pt");
  } else {
    for (const auto& [key, value] : metadata.as_dict().entries())
      if (key.as_string() != origin_name) out.as_dict().set(key, value);
  }
  if (!origin.empty()) out.as_dict().set(std::string(origin_name), origin);
  return out;
}

class FileWriter : public ShardWriter {
 public:
  FileWriter(const Value& root, fs::path target, const WriteOptions& options)
      : ShardWriter(std::move(target), options.overwrite) {
    check_metadata(options.metadata);
    std::vector<NamedTensor> tensors = checked_tensors(root);
    if (const size_t ties = count_ties(tensors); ties > 0)
      warnings_.push_back(written_as_copies(ties, "safetensors has no ties"));
    // The reference writer: wide types first, so that everything is aligned; then by name.
    std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
      const size_t rank_a = find(a.leaf.as_tensor().dtype())->rank;
      const size_t rank_b = find(b.leaf.as_tensor().dtype())->rank;
      return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
    });
    std::vector<Entry> entries;
    for (const NamedTensor& tensor : tensors) {
      const Tensor& data = tensor.leaf.as_tensor();
      const uint64_t end = checked_add(data_size_, data.nbytes(), "the file");
      entries.push_back({tensor.name, find(data.dtype()), data.shape(), data_size_, end});
      items_.push_back({tensor.name, data});
      offsets_.push_back(data_size_);
      data_size_ = end;
    }
    header_ = write_header(entries, completed(options.metadata, options.origin));
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return header_.size(); }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

  std::vector<Slot> lay_out_in(StagedFile& file) override {
    file.reserve(header_.size() + data_size_);
    file.write(0, as_bytes(header_));
    std::vector<Slot> slots;
    for (uint64_t offset : offsets_) slots.push_back({&file, header_.size() + offset});
    return slots;
  }

  void finish(const std::vector<uint32_t>& /*crcs*/) override {}

 private:
  std::string header_;
  std::vector<Item> items_;
  std::vector<uint64_t> offsets_;  // of the items, in the data
  uint64_t data_size_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options) {
  return std::make_unique<FileWriter>(root, target, options);
}

}  // namespace cbk::safetensors
