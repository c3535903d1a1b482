#include "host/formats/h5/writer_v05.hpp"

#include <unordered_map>

#include "host/base/utf8.hpp"
#include "host/formats/h5/file_writer.hpp"
#include "host/formats/h5/flatten.hpp"
#include "host/formats/h5/metadata.hpp"
#include "host/formats/h5/spec_v05.hpp"
#include "host/formats/torch/pickler.hpp"

namespace cbk::h5 {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view default_release = "2.10.0";
constexpr size_t max_key = 60000;

/// The code of a dtype in `rtfx_dtypes`; nothing: torch tensors of this dtype cannot be in the format.
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
  Builder::Links datasets;

  uint64_t add(Builder& builder) const { return builder.add_group(all(builder)); }
  [[nodiscard]] Builder::Links all(Builder& builder) const {
    Builder::Links links = datasets;
    for (const auto& [name, folder] : folders) links.emplace(name, folder.add(builder));
    return links;
  }
};

class WriterV05 final : public FileWriter {
 public:
  WriterV05(const Value& root, const fs::path& target, const WriteOptions& options)
      : FileWriter(target, options.overwrite),
        release_(options.framework_version.empty() ? default_release : options.framework_version) {
    FlatTree tree = flatten(root, true);
    warnings_ = std::move(tree.warnings);
    spec_ = to_spec_v05(tree.spec);
    overhead_ += spec_.size();
    leaves_.reserve(tree.leaves.size());
    for (const FlatLeaf& leaf : tree.leaves) {
      if (leaf.key.size() > max_key || leaf.key.find('\0') != std::string::npos)
        fail(Errc::key, "{} is no key for H5", quote(leaf.key));
      if (!is_strict_utf8(leaf.key)) fail(Errc::key, "the key {} is not Unicode text", quote(leaf.key));
      add_leaf(leaf);
      overhead_ += leaves_.back().text.size() + leaf.key.size() + 700;
    }
  }

 private:
  enum class Stored { nothing, tensor, ndarray, pickle };
  struct Leaf {
    std::string key;
    std::string text;  // its metadata, but for tensors
    Stored stored = Stored::nothing;
    Plan plan;
    std::string pickle;
  };

  void add_leaf(const FlatLeaf& source) {
    Leaf leaf;
    leaf.key = source.key;
    const Value& value = source.value;
    if (const void* identity = value.identity()) {
      const auto [first, is_new] = first_keys_.emplace(identity, source.key);
      if (!is_new) {
        add_metadata(leaf, "LinkedObject", {{"key", first->second}, {"__LINKED__", true}});
        return;
      }
    }
    switch (value.kind()) {
      case Value::Kind::tensor:
        add_array(leaf, value.as_leaf());
        return;
      case Value::Kind::none:
        add_metadata(leaf, "NoneSerializer", {});
        return;
      case Value::Kind::boolean:
      case Value::Kind::integer:
      case Value::Kind::real:
        add_metadata(leaf, "ScalarSerializer", {{"scalar_value", value}});
        return;
      case Value::Kind::string:
        if (has_split_pair(value.as_string())) {  // its escapes would be read as one character
          add_pickle(leaf, value);
          return;
        }
        add_metadata(leaf, "StringSerializer", {{"string_value", value}});
        return;
      default:
        add_pickle(leaf, value);
    }
  }

  using Members = std::vector<std::pair<std::string_view, Value>>;

  /// A leaf that is all metadata.
  void add_metadata(Leaf& leaf, std::string_view type, const Members& members) {
    add_text(leaf, members, type, "__NONE__");
    leaves_.push_back(std::move(leaf));
  }

  static void add_text(Leaf& leaf, const Members& members, std::string_view type, std::string_view storage) {
    Value metadata = Value::dict();
    for (const auto& [name, value] : members) metadata.as_dict().set(name, value);
    metadata.as_dict().set("__TYPE__", type);
    metadata.as_dict().set(storage, true);
    if (storage != "__NONE__") metadata.as_dict().set("compressed", false);
    leaf.text = leaf_metadata(leaf.key, metadata);
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
      add_text(leaf, {{"is_bfloat16", tensor.dtype() == DType::bfloat16}}, "NumpyArraySerializer",
               "__NUMPY__");
    } else {
      leaf.stored = Stored::tensor;
      if (!release_code(tensor.dtype())) {
        fail(Errc::dtype,
             "{} is a {} tensor, which H5 0.5 has no form for; convert it first (0.4 has more dtypes), "
             "or leave it out (cbk copy --exclude)",
             quote(leaf.key), name_of(tensor.dtype()));
      }
      overhead_ +=
          850 + 4 * leaf.key.size();  // its metadata, which is made when it is written: there are many
    }
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
    leaf.pickle = within(quote(leaf.key), [&] { return torch::dill_pickle(value); });
    overhead_ += leaf.pickle.size();
    leaf.stored = Stored::pickle;
    add_text(leaf, {}, "ObjectSerializer", "__BYTES__");
    leaves_.push_back(std::move(leaf));
  }

  /// A key with data is a path inside the file.
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

  Builder::Links build(Builder& builder, HeaderBuilder& root) override {
    builder.add_text(root, "__spec__", spec_);
    add_number(root, "__version__", 0.5);
    builder.add_text(root, "__cstorch_version__", release_);
    Folder folders = folders_;
    for (const Leaf& leaf : leaves_) {
      builder.add_text(root, leaf.key + std::string(metadata_suffix),
                       leaf.stored == Stored::tensor ? tensor_text(leaf) : leaf.text);
      if (leaf.stored == Stored::nothing) continue;
      dataset_of(folders, leaf.key) =
          leaf.stored == Stored::pickle ? add_bytes(builder, leaf) : add_data(builder, leaf);
    }
    builder.add_bool(root, "__SUCCESS__", true);
    return folders.all(builder);
  }

  static std::string tensor_text(const Leaf& leaf) {
    std::string text = metadata_head(leaf.key);
    text += tensor_metadata({leaf.plan.dtype, *release_code(leaf.plan.dtype), leaf.plan.shape});
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

  /// The members of the metadata stand on the dataset once more, as the original writer leaves them.
  uint64_t add_data(Builder& builder, const Leaf& leaf) const {
    HeaderBuilder header = start_dataset(leaf.plan);
    if (leaf.stored == Stored::tensor) {
      builder.add_bool(header, "__TORCH__", true);
      const auto rank = static_cast<int64_t>(leaf.plan.shape.size());
      std::string shape;
      for (const int64_t extent : leaf.plan.shape) append_le(shape, extent);
      // An empty tuple has no integers to tell it from floats.
      header.add_attribute("shapes", rank == 0 ? float64_ : int64_, encode_dataspace({1, rank}), shape);
      header.add_attribute("dtypes", text_datatype(), encode_dataspace({1}),
                           builder.text("torch." + std::string(name_of(leaf.plan.dtype))));
      std::string code;
      append_le(code, *release_code(leaf.plan.dtype));
      header.add_attribute("rtfx_dtypes", int64_, encode_dataspace({1}), code);
    } else {
      builder.add_bool(header, "is_bfloat16", leaf.plan.dtype == DType::bfloat16);
    }
    builder.add_text(header, "__TYPE__",
                     leaf.stored == Stored::tensor ? "TorchTensorSerializer" : "NumpyArraySerializer");
    builder.add_bool(header, "__NUMPY__", true);
    builder.add_bool(header, "compressed", false);
    return builder.add(header.finish());
  }

  static uint64_t add_bytes(Builder& builder, const Leaf& leaf) {
    HeaderBuilder header = start_empty_dataset(DType::float32);
    const std::string type = encode_opaque(1);
    const std::string space = encode_dataspace({static_cast<int64_t>(leaf.pickle.size())});
    if (HeaderBuilder::fits(leaf.pickle.size())) {
      builder.add_text(header, "__TYPE__", "ObjectSerializer");
      header.add_attribute("__BYTES__", type, space, leaf.pickle);
      builder.add_bool(header, "compressed", false);
      return builder.add(header.finish());
    }
    return builder.add_with_dense_attributes(
        std::move(header), {{"__TYPE__", encode_attribute("__TYPE__", text_datatype(), scalar_dataspace(),
                                                          builder.text("ObjectSerializer"))},
                            {"__BYTES__", encode_attribute("__BYTES__", type, space, leaf.pickle)},
                            {"compressed", encode_attribute("compressed", encode_datatype(DType::boolean),
                                                            scalar_dataspace(), "\0"sv)}});
  }

  std::string release_;
  std::string spec_;
  std::vector<Leaf> leaves_;
  Folder folders_;
  std::unordered_map<const void*, std::string> first_keys_;
  const std::string int64_ = encode_datatype(DType::int64);
  const std::string float64_ = encode_datatype(DType::float64);
};

}  // namespace

std::unique_ptr<ShardWriter> make_writer_v05(const Value& root, const fs::path& target,
                                             const WriteOptions& options) {
  return std::make_unique<WriterV05>(root, target, options);
}

}  // namespace cbk::h5
