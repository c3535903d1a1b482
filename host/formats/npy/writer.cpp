#include "host/formats/npy/writer.hpp"

#include "host/formats/npy/header.hpp"
#include "host/value/state_dict.hpp"

namespace cbk::npy {
namespace {

class FileWriter : public ShardWriter {
 public:
  FileWriter(const Value& root, fs::path target, bool overwrite) : ShardWriter(std::move(target), overwrite) {
    const std::vector<NamedTensor> tensors = flat_tensors(root, "npy");
    if (tensors.size() != 1) {
      fail(Errc::value,
           "an .npy file holds one tensor, not {}; choose one with --include (in Lua: give a tree with one)",
           tensors.size());
    }
    const Tensor& tensor = tensors[0].leaf.as_tensor();
    if (!is_known(tensor.dtype())) {
      fail(Errc::dtype,
           "NumPy has no {}, the dtype of {}: cast it, with --to-dtype float32 (in Lua: t:to \"float32\")",
           name_of(tensor.dtype()), quote(tensors[0].name));
    }
    header_ = write_header(tensor.dtype(), tensor.shape());
    items_.push_back({tensors[0].name, tensor});
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return header_.size(); }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

  std::vector<Slot> lay_out_in(StagedFile& file) override {
    file.reserve(header_.size() + items_[0].tensor.nbytes());
    file.write(0, as_bytes(header_));
    return {{&file, header_.size()}};
  }

  void finish(const std::vector<uint32_t>& /*crcs*/) override {}

 private:
  static bool is_known(DType dtype) {
    return dtype != DType::bfloat16 && !(is_floating(dtype) && size_of(dtype) == 1);
  }

  std::string header_;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target, bool overwrite) {
  return std::make_unique<FileWriter>(root, target, overwrite);
}

}  // namespace cbk::npy
