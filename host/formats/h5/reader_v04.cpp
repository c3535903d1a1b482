#include "host/formats/h5/reader_v04.hpp"

#include "host/base/hash.hpp"
#include "host/formats/h5/spec_v04.hpp"
#include "host/formats/h5/stored_pickles.hpp"
#include "host/formats/h5/text.hpp"
#include "host/value/element.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

constexpr int max_links = 20;

enum class Meaning { tensor, ndarray, scalar, text, none, object, full, file, link, graph };

struct TagV04 {
  std::string_view name;
  Meaning meaning;
};
constexpr TagV04 tags_v04[] = {
    {"TorchTensorH5Type", Meaning::tensor},
    {"StoredTensorH5Type", Meaning::tensor},
    {"NumpyArrayH5Type", Meaning::ndarray},
    {"ScalarH5Type", Meaning::scalar},
    {"StringH5Type", Meaning::text},
    {"NoneH5Type", Meaning::none},
    {"ObjectH5Type", Meaning::object},
    {"DeferredFullTensor", Meaning::full},
    {"FullTensorH5Type", Meaning::full},
    {"DeferredFileTensor", Meaning::file},
    {"StoredApplianceTensorH5Type", Meaning::file},
    {"DeferredH5Tensor", Meaning::link},
    {"DeferredGraphTensor", Meaning::graph},
};

class ReaderV04 {
 public:
  ReaderV04(Datasets& datasets, double version, bool allow_records)
      : datasets_(datasets), version_(version), allow_records_(allow_records) {}

  Value read(const Located& located, int depth = 0) {
    if (depth > max_links) fail(Errc::format, "links form a cycle");
    const hdf5::Attributes attributes = located.file->attributes(located.object);
    if (const auto type = attributes.text("__H5_TYPE__"))
      return read_tagged(located, attributes, *type, depth);
    // The markers of 0.1 and 0.2, in this order.
    if (attributes.find("filepath") != nullptr) return read_file_tensor(located, attributes);
    if (attributes.is_set("is_constructible")) return read_full(located, attributes);
    if (attributes.is_set("is_none")) return {};
    if (attributes.is_set("is_string")) return required_text(attributes, "string_val");
    if (attributes.is_set("is_scalar")) return datasets_.scalar(located);
    return read_data(located, attributes, TensorLeaf::Role::tensor);
  }

 private:
  Value read_tagged(const Located& located, const hdf5::Attributes& attributes, std::string_view type,
                    int depth) {
    switch (meaning_of(type)) {
      case Meaning::tensor:
        return read_data(located, attributes, TensorLeaf::Role::tensor);
      case Meaning::ndarray: {
        // Up to 0.3, torch tensors had this name.
        const bool is_array = version_ > 0.35 && !attributes.is_set("is_bfloat16");
        return read_data(located, attributes,
                         is_array ? TensorLeaf::Role::ndarray : TensorLeaf::Role::tensor);
      }
      case Meaning::scalar:
        return datasets_.scalar(located);
      case Meaning::text:
        return required_text(attributes, "string_value");
      case Meaning::none:
        return {};
      case Meaning::object:
        return unpickle_stored(from_hex(required_text(attributes, "object_value")), allow_records_,
                               memory_of(located));
      case Meaning::full:
        return read_full(located, attributes);
      case Meaning::file:
        return read_file_tensor(located, attributes);
      case Meaning::link:
        return read_link(located, attributes, depth);
      case Meaning::graph:
        return read_graph(located, attributes, depth);
    }
    return {};
  }

  static Meaning meaning_of(std::string_view type) {
    std::vector<std::string> known;
    for (const TagV04& tag : tags_v04) {
      if (tag.name == type) return tag.meaning;
      known.emplace_back(tag.name);
    }
    fail(Errc::unsupported, "unknown __H5_TYPE__ {} (known: {})", quote(type), listed(known));
  }

  static std::string required_text(const hdf5::Attributes& attributes, std::string_view name) {
    const auto text = attributes.text(name);
    if (!text) fail(Errc::format, "attribute '{}' is missing", name);
    return std::string(*text);
  }

  static MemoryBudget& memory_of(const Located& located) { return *located.file->memory(); }

  static Value required(const hdf5::Attributes& attributes, std::string_view name) {
    const auto value = attributes.value(name);
    if (!value) fail(Errc::format, "attribute '{}' is missing", name);
    return *value;
  }

  Value read_data(const Located& located, const hdf5::Attributes& attributes, TensorLeaf::Role role) {
    const bool is_bfloat = attributes.is_set("is_bfloat16");
    return datasets_.leaf(located, {is_bfloat ? std::optional(DType::bfloat16) : std::nullopt, role});
  }

  /// The dtype of a dataset that holds no data.
  static DType empty_dtype(const Located& located, const hdf5::Attributes& attributes) {
    const hdf5::Message* message = located.object.find(hdf5::MessageType::datatype);
    if (message == nullptr) hdf5::damaged("a dataset without a type");
    const hdf5::Datatype type = located.file->objects().datatype(*message);
    const auto dtype = type.dtype();
    if (!dtype) fail(Errc::unsupported, "elements of type {} have no dtype", type.describe());
    if (!attributes.is_set("is_bfloat16")) return *dtype;
    if (size_of(*dtype) != 2)
      fail(Errc::format, "bfloat16 is stored in 16-bit integers, not in {}", name_of(*dtype));
    return DType::bfloat16;
  }

  static Value read_full(const Located& located, const hdf5::Attributes& attributes) {
    return full_tensor(empty_dtype(located, attributes), to_shape(required(attributes, "shape")),
                       required(attributes, "fill_value"));
  }

  Value read_file_tensor(const Located& located, const hdf5::Attributes& attributes) {
    const Value dtype =
        unpickle_stored(from_hex(required_text(attributes, "dtype")), false, memory_of(located));
    if (!dtype.is(Value::Kind::object) || dtype.as_object().type != "torch.dtype") {
      fail(Errc::format, "attribute 'dtype' is {}", a_kind(dtype));
    }
    return datasets_.file_tensor(required_text(attributes, "filepath"), parse_dtype(dtype.as_object().repr),
                                 to_shape(required(attributes, "shape")));
  }

  Value read_link(const Located& located, const hdf5::Attributes& attributes, int depth) {
    const std::string key = required_text(attributes, "key");
    std::shared_ptr<hdf5::File> file = located.file;
    if (!attributes.is_set("link_to_self"))
      file = datasets_.files().open(required_text(attributes, "filepath"));
    return read(datasets_.find(file, key), depth + 1);
  }

  Value read_graph(const Located& located, const hdf5::Attributes& attributes, int depth) {
    const Value names = required(attributes, "args");
    if (!names.is(Value::Kind::sequence)) fail(Errc::format, "attribute 'args' is {}", a_kind(names));
    Value args = Value::list();
    for (const Value& name : names.as_sequence().items) {
      args.as_sequence().items.push_back(read(datasets_.find(located.file, name.as_string()), depth + 1));
    }
    return make_graph_tensor(required_text(attributes, "jit_graph"), empty_dtype(located, attributes),
                             to_shape(required(attributes, "shape")), args);
  }

  Datasets& datasets_;
  double version_;
  bool allow_records_;
};

}  // namespace

Value read_v04(Datasets& datasets, double version, bool allow_records, std::vector<std::string>& warnings) {
  const std::shared_ptr<hdf5::File>& file = datasets.files().main();
  MemoryBudget& memory = *file->memory();
  const TreeSpec spec = within("__spec__", [&] {
    const auto text = file->attributes(file->root()).text("__spec__");
    return parse_spec_v04(text.value_or(""), memory);
  });
  const std::vector<std::string> keys = leaf_keys(spec, memory);
  std::unordered_map<std::string, const hdf5::Link*, KeyedHash> links;
  for (const hdf5::Link& link : file->links()) links.emplace(percent_decode(link.name), &link);

  ReaderV04 reader(datasets, version, allow_records);
  RefusedValues refused;
  std::vector<Value> leaves;
  leaves.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto link = links.find(key);
    if (link == links.end()) {
      warnings.push_back(quote(key) + " is in the tree but not in the file: it reads as None");
      leaves.emplace_back();
      continue;
    }
    leaves.push_back(refused.attempt(key, [&] { return reader.read(datasets.follow(file, *link->second)); }));
  }
  refused.fail_if_any();
  size_t next = 0;
  return build_tree(spec, [&] { return leaves[next++]; });
}

}  // namespace cbk::h5
