#include "host/formats/h5/writer_v05.hpp"

#include <unordered_map>

#include "host/base/utf8.hpp"
#include "host/formats/h5/file_writer.hpp"
#include "host/formats/h5/flatten.hpp"
#include "host/formats/h5/metadata.hpp"
#include "host/formats/h5/spec_v05.hpp"
#include "host/formats/pickle/pickler.hpp"

namespace cbk::h5 {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view default_release = "2.10.0";
constexpr size_t max_key = 60000;
constexpr size_t longest_text = 1 << 20;  // in metadata, where its characters are escaped

/// The code of a dtype in `rtfx_dtypes`; nothing if the format cannot hold torch tensors of this dtype.
std::optional<int64_t> release_code(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return 1;
    case DType::int16:
      return 3;
    case DType::int32:
      return 4;
    case DType::int64:
      return 5;
    case DType::uint8:
      return 6;
    case DType::float16:
      return 10;
    case DType::float32:
      return 11;
    case DType::float64:
      return 12;
    case DType::bfloat16:
      return 16;
    default:
      return std::nullopt;
  }
}

/// The datasets of the file: a "/" in a key makes groups.
struct Folder {
  std::map<std::string, Folder, std::less<>> folders;
  hdf5::Builder::Links datasets;  // and, once they are added, groups

  /// Adds the groups of the folders in this one; returns all links of its own group.
  const hdf5::Builder::Links& links(hdf5::Builder& builder) {
    for (auto& [name, folder] : folders)
      datasets.insert_or_assign(name, builder.add_group(folder.links(builder)));
    return datasets;
  }
};

class WriterV05 final : public FileWriter {
 public:
  WriterV05(const Value& root, const fs::path& target, const WriteOptions& options)
      : FileWriter(target, options),
        release_(options.framework_version.empty() ? default_release : options.framework_version) {
    FlatTree tree = flatten(root, {.sets_are_containers = true});
    for (const FlatLeaf& leaf : tree.leaves) check_key(leaf.key);  // before the spec, which escapes them
    warnings_ = std::move(tree.warnings);
    spec_ = to_spec_v05(std::exchange(tree.spec, {}));
    overhead_ += spec_.size();
    leaves_.reserve(tree.leaves.size());
    reserve_items(tree.leaves.size());
    for (; !tree.leaves.empty(); tree.leaves.pop_front()) add_leaf(std::move(tree.leaves.front()));
  }

 private:
  static void check_key(const std::string& key) {
    if (key.size() > max_key || key.find('\0') != std::string::npos)
      fail(Errc::key, "{} cannot be a key in H5", quote(key));
    if (!is_strict_utf8(key)) fail(Errc::key, "the key {} is not Unicode text", quote(key));
  }

  enum class Stored { nothing, tensor, ndarray, pickle };
  // Metadata is made only when it is written: there may be 100,000 leaves.
  struct Leaf {
    std::string key;
    Value value;                        // of a leaf that is all metadata; bytes: a pickle
    std::optional<uint32_t> linked_to;  // the leaf that is the same object
    Stored stored = Stored::nothing;
    Plan plan;
  };

  void add_leaf(FlatLeaf source) {
    Leaf leaf;
    leaf.key = std::move(source.key);
    overhead_ += leaf.key.size() + 700;
    const Value& value = source.value;
    if (const void* identity = value.identity()) {
      const auto [first, is_new] = first_leaves_.emplace(identity, static_cast<uint32_t>(leaves_.size()));
      if (!is_new) {
        leaf.linked_to = first->second;
        add_metadata(std::move(leaf));
        return;
      }
    }
    switch (value.kind()) {
      case Value::Kind::tensor:
        add_array(leaf, value.as_leaf());
        return;
      case Value::Kind::none:
      case Value::Kind::boolean:
      case Value::Kind::integer:
      case Value::Kind::real:
        leaf.value = value;
        add_metadata(std::move(leaf));
        return;
      case Value::Kind::string:
        // The escapes of a split pair would be read as one character.
        if (value.as_string().size() > longest_text || has_split_pair(value.as_string())) {
          add_pickle(leaf, value);
          return;
        }
        leaf.value = value;
        overhead_ += value.as_string().size();
        add_metadata(std::move(leaf));
        return;
      default:
        add_pickle(leaf, value);
    }
  }

  void add_metadata(Leaf leaf) {
    overhead_ += 500 + 4 * leaf.key.size();
    leaves_.push_back(std::move(leaf));
  }

  using Members = std::vector<std::pair<std::string_view, Value>>;

  static std::string text_of(const Leaf& leaf, const Members& members, std::string_view type,
                             std::string_view storage) {
    Value metadata = Value::dict();
    for (const auto& [name, value] : members) metadata.as_dict().set(name, value);
    metadata.as_dict().set("__TYPE__", type);
    metadata.as_dict().set(storage, true);
    if (storage != "__NONE__") metadata.as_dict().set("compressed", false);
    return leaf_metadata(leaf.key, metadata);
  }

  [[nodiscard]] std::string plain_text(const Leaf& leaf) const {
    constexpr std::string_view storage = "__NONE__";
    if (leaf.linked_to)
      return text_of(leaf, {{"key", leaves_[*leaf.linked_to].key}, {"__LINKED__", true}}, "LinkedObject",
                     storage);
    if (leaf.value.is_none()) return text_of(leaf, {}, "NoneSerializer", storage);
    if (leaf.value.is(Value::Kind::string))
      return text_of(leaf, {{"string_value", leaf.value}}, "StringSerializer", storage);
    return text_of(leaf, {{"scalar_value", leaf.value}}, "ScalarSerializer", storage);
  }

  [[nodiscard]] std::string metadata_of(const Leaf& leaf) const {
    switch (leaf.stored) {
      case Stored::nothing:
        return plain_text(leaf);
      case Stored::tensor:
        return tensor_text(leaf);
      case Stored::ndarray:
        return text_of(leaf, {{"is_bfloat16", leaf.plan.tensor.dtype() == DType::bfloat16}},
                       "NumpyArraySerializer", "__NUMPY__");
      case Stored::pickle:
        return text_of(leaf, {}, "ObjectSerializer", "__BYTES__");
    }
    return {};
  }

  void add_array(Leaf& leaf, const TensorLeaf& source) {
    if (source.role == TensorLeaf::Role::np_scalar) {
      add_pickle(leaf, Value(std::make_shared<const TensorLeaf>(source)));
      return;
    }
    const Tensor& tensor = source.tensor;
    check_path(leaf.key);
    leaf.plan = plan_dataset(leaf.key, leaf.key, tensor);
    if (source.role == TensorLeaf::Role::ndarray) {
      leaf.stored = Stored::ndarray;
    } else {
      leaf.stored = Stored::tensor;
      if (!release_code(tensor.dtype())) {
        fail(Errc::dtype,
             "{} is of {}, which H5 0.5 has no form for; write a PyTorch (.pt) or safetensors file, "
             "which has it",
             quote(leaf.key), name_of(tensor.dtype()));
      }
    }
    overhead_ += 850 + 4 * leaf.key.size();
    leaves_.push_back(std::move(leaf));
  }

  void add_pickle(Leaf& leaf, const Value& value) {
    if (value.is(Value::Kind::object)) {
      const std::string& type = value.as_object().type;
      if (type.starts_with("torch.sparse") || type == "torch.quantized" || type == "cerebras.graph_tensor") {
        fail(Errc::unsupported, "{} is a {}, which H5 0.5 has no form for; make it a dense tensor first",
             quote(leaf.key), type);
      }
    }
    check_path(leaf.key);
    leaf.value = Value::bytes(within(quote(leaf.key), [&] { return pickle::dump_dill(value); }));
    overhead_ += leaf.value.as_bytes().data.size();
    leaf.stored = Stored::pickle;
    overhead_ += 500 + 4 * leaf.key.size();
    leaves_.push_back(std::move(leaf));
  }

  /// Checks a key with data, which is a path inside the file.
  void check_path(const std::string& key) {
    Folder* folder = &folders_;
    std::string_view rest = key;
    while (true) {
      const size_t slash = rest.find('/');
      const std::string part(rest.substr(0, slash));
      if (part.empty() || part == "." || part == "..") {
        fail(Errc::key, "{} cannot be the path of a dataset: a part between slashes is {}", quote(key),
             quote(part));
      }
      const bool is_last = slash == std::string_view::npos;
      if (is_last ? folder->folders.contains(part) : folder->datasets.contains(part)) {
        fail(Errc::key, "{} would have to be a dataset and a group at once", quote(part));
      }
      if (is_last) {
        folder->datasets.emplace(part, 0);
        return;
      }
      folder = &folder->folders[part];
      rest.remove_prefix(slash + 1);
    }
  }

  const hdf5::Builder::Links& build(hdf5::Builder& builder, hdf5::HeaderBuilder& root) override {
    builder.add_text(root, "__spec__", spec_);
    add_number(root, "__version__", 0.5);
    builder.add_text(root, "__cstorch_version__", release_);
    for (const Leaf& leaf : leaves_) {
      builder.add_text(root, leaf.key + std::string(metadata_suffix), metadata_of(leaf));
      if (leaf.stored == Stored::nothing) continue;
      dataset_of(folders_, leaf.key) =
          leaf.stored == Stored::pickle ? add_bytes(builder, leaf) : add_data(builder, leaf);
    }
    builder.add_bool(root, "__SUCCESS__", true);
    return folders_.links(builder);
  }

  static std::string tensor_text(const Leaf& leaf) {
    std::string text = metadata_head(leaf.key);
    text += tensor_metadata(
        {leaf.plan.tensor.dtype(), *release_code(leaf.plan.tensor.dtype()), leaf.plan.tensor.shape()});
    text += metadata_tail;
    return text;
  }

  static uint64_t& dataset_of(Folder& root, std::string_view path) {
    Folder* folder = &root;
    for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
      folder = &folder->folders.find(path.substr(0, slash))->second;
      path.remove_prefix(slash + 1);
    }
    return folder->datasets[std::string(path)];
  }

  /// The members of the metadata are repeated on the dataset, as in the original writer.
  uint64_t add_data(hdf5::Builder& builder, const Leaf& leaf) const {
    hdf5::HeaderBuilder header = start_dataset(builder, leaf.plan);
    if (leaf.stored == Stored::tensor) {
      builder.add_bool(header, "__TORCH__", true);
      const auto rank = static_cast<int64_t>(leaf.plan.tensor.shape().size());
      std::string shape;
      for (const int64_t extent : leaf.plan.tensor.shape()) append_le(shape, extent);
      // An empty tuple has no integers to distinguish it from floats.
      header.add_attribute("shapes", rank == 0 ? float64_ : int64_, hdf5::encode_dataspace({1, rank}), shape);
      header.add_attribute("dtypes", hdf5::text_datatype(), hdf5::encode_dataspace({1}),
                           builder.text("torch." + std::string(name_of(leaf.plan.tensor.dtype()))));
      std::string code;
      append_le(code, *release_code(leaf.plan.tensor.dtype()));
      header.add_attribute("rtfx_dtypes", int64_, hdf5::encode_dataspace({1}), code);
    } else {
      builder.add_bool(header, "is_bfloat16", leaf.plan.tensor.dtype() == DType::bfloat16);
    }
    builder.add_text(header, "__TYPE__",
                     leaf.stored == Stored::tensor ? "TorchTensorSerializer" : "NumpyArraySerializer");
    builder.add_bool(header, "__NUMPY__", true);
    builder.add_bool(header, "compressed", false);
    return builder.add(header.finish());
  }

  static uint64_t add_bytes(hdf5::Builder& builder, const Leaf& leaf) {
    hdf5::HeaderBuilder header = start_empty_dataset(DType::float32);
    const std::string& pickle = leaf.value.as_bytes().data;
    const std::string type = hdf5::encode_opaque(1);
    const std::string space = hdf5::encode_dataspace({static_cast<int64_t>(pickle.size())});
    if (hdf5::HeaderBuilder::fits(pickle.size())) {
      builder.add_text(header, "__TYPE__", "ObjectSerializer");
      header.add_attribute("__BYTES__", type, space, pickle);
      builder.add_bool(header, "compressed", false);
      return builder.add(header.finish());
    }
    return builder.add_with_dense_attributes(
        std::move(header),
        {{"__TYPE__", hdf5::encode_attribute("__TYPE__", hdf5::text_datatype(), hdf5::scalar_dataspace(),
                                             builder.text("ObjectSerializer"))},
         {"__BYTES__", hdf5::encode_attribute("__BYTES__", type, space, pickle)},
         {"compressed", hdf5::encode_attribute("compressed", hdf5::encode_datatype(DType::boolean),
                                               hdf5::scalar_dataspace(), "\0"sv)}});
  }

  std::string release_;
  std::string spec_;
  std::vector<Leaf> leaves_;
  Folder folders_;
  std::unordered_map<const void*, uint32_t> first_leaves_;
  const std::string int64_ = hdf5::encode_datatype(DType::int64);
  const std::string float64_ = hdf5::encode_datatype(DType::float64);
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer_v05(const Value& root, const fs::path& target,
                                             const WriteOptions& options) {
  return std::make_unique<WriterV05>(root, target, options);
}

}  // namespace cbk::h5
