#include "host/formats/h5/writer_v04.hpp"

#include <unordered_map>

#include "host/base/utf8.hpp"
#include "host/formats/h5/file_writer.hpp"
#include "host/formats/h5/flatten.hpp"
#include "host/formats/h5/spec_v04.hpp"
#include "host/formats/h5/text.hpp"
#include "host/formats/pickle/pickler.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

constexpr std::string_view type_attribute = "__H5_TYPE__";

/// Datasets named by percent-encoded keys, all in the root group.
class DatasetWriter : public FileWriter {
 protected:
  using FileWriter::FileWriter;

  enum class Stored { tensor, ndarray, texts, scalar, text, none, object };
  struct Leaf {
    std::string name;
    Stored stored = Stored::none;
    Plan plan;           // tensor, ndarray
    Value value;         // scalar, texts
    std::string text;    // text; object: hex of its pickle
    size_t same_as = 0;  // this leaf or an earlier one: one dataset with two names
    uint32_t names = 1;  // of its dataset
  };

  static std::string name_of_key(const std::string& key) {
    if (key.empty() || key == "." || key == "..")
      fail(Errc::key, "{} cannot be the name of a dataset", quote(key));
    if (!is_strict_utf8(key)) fail(Errc::key, "the key {} is not Unicode text", quote(key));
    return percent_encode(key);
  }

  void add_array(const std::string& key, const TensorLeaf& source, bool is_array) {
    Leaf leaf;
    leaf.name = name_of_key(key);
    leaf.same_as = leaves_.size();
    leaf.stored = is_array ? Stored::ndarray : Stored::tensor;
    const auto [first, is_new] = first_.emplace(&source, leaves_.size());
    // A hard link is read as an ordinary tensor by every loader, and the data is stored once.
    if (is_new) {
      leaf.plan = plan_dataset(key, leaf.name, source.tensor);
    } else {
      leaf.same_as = first->second;
      ++leaves_[leaf.same_as].names;
    }
    leaves_.push_back(std::move(leaf));
  }

  /// `texts`: as TensorFlow has them.
  void add_texts(const std::string& key, const Value& texts) {
    Leaf leaf;
    leaf.name = name_of_key(key);
    leaf.stored = Stored::texts;
    leaf.value = texts;
    leaf.same_as = leaves_.size();
    const tensorflow::ForeignTensor tensor = tensorflow::to_foreign(texts);
    overhead_ += 500 + 2 * leaf.name.size() + tensor.elements.nbytes() +
                 40 * static_cast<uint64_t>(numel_of(tensor.shape));
    leaves_.push_back(std::move(leaf));
  }

  const hdf5::Builder::Links& build(hdf5::Builder& builder, hdf5::HeaderBuilder& /*root*/) override {
    std::vector<uint64_t> addresses;
    addresses.reserve(leaves_.size());
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const Leaf& leaf = leaves_[i];
      addresses.push_back(leaf.same_as < i ? addresses[leaf.same_as] : add_leaf(builder, leaf));
      links_.insert_or_assign(leaf.name, addresses.back());
    }
    return links_;
  }

  std::vector<Leaf> leaves_;

 private:
  hdf5::Builder::Links links_;

  uint64_t add_leaf(hdf5::Builder& builder, const Leaf& leaf) const {
    switch (leaf.stored) {
      case Stored::tensor:
        return add_data(builder, leaf, "TorchTensorH5Type");
      case Stored::ndarray:
        return add_data(builder, leaf, "NumpyArrayH5Type");
      case Stored::texts:
        return add_texts(builder, leaf);
      case Stored::scalar:
        return add_scalar(builder, leaf.value);
      case Stored::text:
        return add_empty(builder, "StringH5Type", "string_value", leaf.text);
      case Stored::none:
        return add_empty(builder, "NoneH5Type", "", "");
      case Stored::object:
        return add_empty(builder, "ObjectH5Type", "object_value", leaf.text);
    }
    return 0;
  }

  uint64_t add_data(hdf5::Builder& builder, const Leaf& leaf, std::string_view type) const {
    hdf5::HeaderBuilder header = start_dataset(builder, leaf.plan);
    header.set_references(leaf.names);
    builder.add_bool(header, "is_bfloat16", leaf.plan.tensor.dtype() == DType::bfloat16);
    builder.add_text(header, type_attribute, type);
    return builder.add(header.finish());
  }

  static uint64_t add_texts(hdf5::Builder& builder, const Leaf& leaf) {
    const tensorflow::ForeignTensor tensor = tensorflow::to_foreign(leaf.value);
    const Bytes stored = tensor.elements.to_bytes();
    const auto texts = tensorflow::decode_texts(stored, numel_of(tensor.shape));
    std::string references;
    for (const std::string_view text : texts) references += builder.text(text);
    hdf5::HeaderBuilder header;
    header.add(hdf5::MessageType::dataspace,
               tensor.shape.empty() ? hdf5::scalar_dataspace() : hdf5::encode_dataspace(tensor.shape));
    header.add(hdf5::MessageType::datatype, hdf5::texts_datatype(texts));
    header.add(hdf5::MessageType::fill_value, hdf5::default_fill_value());
    const uint64_t address = references.empty() ? hdf5::undefined_address : builder.add(references);
    header.add(hdf5::MessageType::layout, hdf5::encode_contiguous(address, references.size()));
    builder.add_bool(header, "is_bfloat16", false);
    builder.add_text(header, type_attribute, "NumpyArrayH5Type");
    return builder.add(header.finish());
  }

  static uint64_t add_scalar(hdf5::Builder& builder, const Value& value) {
    std::string data;
    DType dtype = DType::float64;
    if (value.is(Value::Kind::boolean)) {
      dtype = DType::boolean;
      data = value.as_bool() ? '\1' : '\0';
    } else if (value.is(Value::Kind::integer)) {
      dtype = DType::int64;
      append_le(data, value.as_int());
    } else {
      append_le(data, value.as_double());
    }
    hdf5::HeaderBuilder header;
    header.add(hdf5::MessageType::dataspace, hdf5::scalar_dataspace());
    header.add(hdf5::MessageType::datatype, hdf5::encode_datatype(dtype));
    header.add(hdf5::MessageType::fill_value, hdf5::default_fill_value());
    header.add(hdf5::MessageType::layout, hdf5::encode_compact(data));
    builder.add_text(header, type_attribute, "ScalarH5Type");
    return builder.add(header.finish());
  }

  static uint64_t add_empty(hdf5::Builder& builder, std::string_view type, std::string_view name,
                            std::string_view text) {
    hdf5::HeaderBuilder header = start_empty_dataset(DType::float32);
    builder.add_text(header, type_attribute, type);
    if (!name.empty()) builder.add_text(header, name, text);
    return builder.add(header.finish());
  }

  std::unordered_map<const TensorLeaf*, size_t> first_;  // ties stay
};

class WriterV04 final : public DatasetWriter {
 public:
  WriterV04(const Value& root, const fs::path& target, const WriteOptions& options)
      : DatasetWriter(target, options), release_(options.framework_version) {
    FlatTree tree = flatten(root, {.container_cost = 2});
    warnings_ = tree.warnings;
    spec_ = to_spec_v04(std::exchange(tree.spec, {}));
    overhead_ += spec_.size();
    leaves_.reserve(tree.leaves.size());
    reserve_items(tree.leaves.size());
    for (; !tree.leaves.empty(); tree.leaves.pop_front()) {
      const FlatLeaf& leaf = tree.leaves.front();
      if (leaf.value.is(Value::Kind::tensor)) {
        const TensorLeaf& source = leaf.value.as_leaf();
        using enum TensorLeaf::Role;
        add_array(leaf.key, source, source.role == ndarray || source.role == np_scalar);
      } else {
        add_other(leaf);
      }
    }
  }

 private:
  void add_other(const FlatLeaf& source) {
    const Value& value = source.value;
    Leaf leaf;
    leaf.name = name_of_key(source.key);
    leaf.same_as = leaves_.size();
    if (value.is(Value::Kind::boolean) || value.is(Value::Kind::real) || value.is(Value::Kind::integer)) {
      if (value.is(Value::Kind::integer) && !value.as_integer().fits) {
        fail(Errc::value, "{} is {}, beyond the 64 bits of H5 0.4 (0.5 has larger ones)", quote(source.key),
             quote(*value.as_integer().digits, 40));
      }
      leaf.stored = Stored::scalar;
      leaf.value = value;
    } else if (value.is(Value::Kind::string) && value.as_string().find('\0') == std::string::npos &&
               is_strict_utf8(value.as_string())) {
      leaf.stored = Stored::text;
      leaf.text = value.as_string();
    } else if (!value.is_none()) {
      leaf.stored = Stored::object;
      leaf.text = to_hex(pickle(source));
    }
    overhead_ += 500 + leaf.text.size() + 2 * leaf.name.size();
    leaves_.push_back(std::move(leaf));
  }

  static std::string pickle(const FlatLeaf& source) {
    if (source.value.is(Value::Kind::object)) {
      const std::string& type = source.value.as_object().type;
      if (type.starts_with("torch.sparse") || type == "torch.quantized" || type == "cerebras.graph_tensor") {
        fail(Errc::unsupported, "{} is a {}, which H5 0.4 has no form for; make it a dense tensor first",
             quote(source.key), type);
      }
    }
    return within(quote(source.key), [&] { return pickle::dump_dill(source.value); });
  }

  const hdf5::Builder::Links& build(hdf5::Builder& builder, hdf5::HeaderBuilder& root) override {
    builder.add_text(root, "__spec__", spec_);
    add_number(root, "__version__", 0.4);
    if (!release_.empty()) builder.add_text(root, "__cstorch_version__", release_);
    return DatasetWriter::build(builder, root);
  }

  std::string release_;
  std::string spec_;
};

class FlatWriter final : public DatasetWriter {
 public:
  FlatWriter(const Value& root, const fs::path& target, const WriteOptions& options)
      : DatasetWriter(target, options) {
    if (!root.is(Value::Kind::dict))
      fail(Errc::value, "a flat H5 file holds named tensors; this is {}", a_kind(root));
    for (const auto& [key, value] : root.as_dict().entries()) {
      if (key.is(Value::Kind::string) && tensorflow::is_foreign(value)) {
        add_texts(key.as_string(), value);
        continue;
      }
      if (!key.is(Value::Kind::string) || !value.is(Value::Kind::tensor)) {
        fail(Errc::value, "a flat H5 file holds named tensors; {} is {}", quote(key_text(key)),
             a_kind(value));
      }
      add_array(key.as_string(), value.as_leaf(), true);
    }
    if (!options.metadata.is(Value::Kind::dict)) return;
    for (const auto& [key, value] : options.metadata.as_dict().entries()) {
      if (key.is(Value::Kind::string) && value.is(Value::Kind::integer))
        counts_.emplace_back(key.as_string(), value.as_int());
    }
  }

 private:
  const hdf5::Builder::Links& build(hdf5::Builder& builder, hdf5::HeaderBuilder& root) override {
    for (const auto& [name, count] : counts_) add_count(root, name, count);
    return DatasetWriter::build(builder, root);
  }

  std::vector<std::pair<std::string, int64_t>> counts_;
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer_v04(const Value& root, const fs::path& target,
                                             const WriteOptions& options) {
  return std::make_unique<WriterV04>(root, target, options);
}

std::unique_ptr<ShardWriter> make_flat_writer(const Value& root, const fs::path& target,
                                              const WriteOptions& options) {
  return std::make_unique<FlatWriter>(root, target, options);
}

}  // namespace cbk::h5
