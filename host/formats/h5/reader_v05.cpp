#include "host/formats/h5/reader_v05.hpp"

#include <unordered_set>

#include "host/base/hash.hpp"
#include "host/formats/h5/metadata.hpp"
#include "host/formats/h5/spec_v05.hpp"
#include "host/formats/h5/stored_pickles.hpp"
#include "host/formats/safetensors/reader.hpp"
#include "host/value/element.hpp"
#include "host/value/json.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

constexpr std::string_view nested_object = "NestedObject";
constexpr int max_nesting = 20;

enum class Serializer {
  tensor,
  ndarray,
  scalar,
  text,
  none,
  linked,
  full,
  object,
  external_object,
  external_safetensor,
  external_file,
};

struct TagV05 {
  std::string_view name;
  Serializer serializer;
};
constexpr TagV05 tags_v05[] = {
    {"TorchTensorSerializer", Serializer::tensor},
    {"NumpyArraySerializer", Serializer::ndarray},
    {"ScalarSerializer", Serializer::scalar},
    {"StringSerializer", Serializer::text},
    {"NoneSerializer", Serializer::none},
    {"LinkedObject", Serializer::linked},
    {"DeferredFullTensor", Serializer::full},
    {"ObjectSerializer", Serializer::object},
    {"DeferredNumpyArray", Serializer::external_object},
    {"DeferredObject", Serializer::external_object},
    {"DeferredSafeTensor", Serializer::external_safetensor},
    {"DeferredFileTensor", Serializer::external_file},
};

const Value* find_member(const Value& object, std::string_view name) {
  if (!object.is(Value::Kind::dict)) fail(Errc::format, "metadata that is {}", a_kind(object));
  return object.as_dict().find(name);
}

const Value& member(const Value& object, std::string_view name) {
  const Value* found = find_member(object, name);
  if (found == nullptr) fail(Errc::format, "the metadata has no {}", quote(name));
  return *found;
}

const std::vector<Value>& list_of(const Value& value, std::string_view name) {
  if (!value.is(Value::Kind::sequence)) fail(Errc::format, "'{}' of the metadata is {}", name, a_kind(value));
  return value.as_sequence().items;
}

DType dtype_member(const Value& object, std::string_view name) {
  return parse_dtype(member(object, name).as_string());
}

/// The first of `dtypes` or `shapes`.
const Value& first_of(const Value& object, std::string_view name) {
  const auto& items = list_of(member(object, name), name);
  if (items.empty()) fail(Errc::format, "'{}' of the metadata is empty", name);
  return items.front();
}

/// A leaf: a value, or a link to another key.
struct Leaf {
  Value value;
  std::string link;
  bool is_link = false;
};

class ReaderV05 {
 public:
  ReaderV05(Datasets& datasets, std::shared_ptr<hdf5::File> file, const hdf5::Attributes& root,
            bool allow_records)
      : datasets_(datasets),
        file_(std::move(file)),
        root_(root),
        memory_(*file_->memory()),
        allow_records_(allow_records) {}

  Leaf read_leaf(const std::string& key) {
    const auto text = root_.text(key + std::string(metadata_suffix));
    if (!text) fail(Errc::format, "its metadata is missing; is the checkpoint complete?");
    const std::string head = metadata_head(key);
    if (text->starts_with(head) && text->ends_with(metadata_tail)) {
      const std::string_view object =
          text->substr(head.size(), text->size() - head.size() - metadata_tail.size());
      if (const auto tensor = match_tensor_metadata(object)) {
        return {read_tensor(file_, key, tensor->dtype, tensor->shape), {}, false};
      }
      return read_object(file_, key, parse_python_json(object, memory_), 0);
    }
    return read_nested(key, parse_python_json(*text, memory_));
  }

 private:
  /// The general case: a tree of objects and the metadata of their wrappers.
  Leaf read_nested(const std::string& key, const Value& metadata) {
    const TreeSpec spec = parse_spec_v05(member(metadata, "__spec__"), memory_);
    std::unordered_set<std::string, KeyedHash> objects;
    for (const Value& name : list_of(member(metadata, "__objects__"), "__objects__"))
      objects.insert(name.as_string());
    std::vector<Value> leaves;
    const std::vector<std::string> subkeys = leaf_keys(spec, memory_);
    for (const std::string& subkey : subkeys) {
      const Value& own = member(metadata, subkey + std::string(metadata_suffix));
      if (!objects.contains(subkey)) {
        leaves.push_back(own);
        continue;
      }
      Leaf leaf = read_object(file_, subkey, own, 0);
      if (leaf.is_link && subkeys.size() == 1) return leaf;
      if (leaf.is_link) fail(Errc::format, "{} is a link inside a nested object", quote(subkey));
      leaves.push_back(std::move(leaf.value));
    }
    size_t next = 0;
    const Value tree = build_tree(spec, [&] { return leaves[next++]; });
    return {unwrap(member(tree, key), 0), {}, false};
  }

  static const Sequence* as_nested(const Value& value) {
    if (!value.is(Value::Kind::sequence) || value.as_sequence().type != nested_object) return nullptr;
    if (value.as_sequence().items.size() != 2) fail(Errc::format, "a nested object has two parts");
    return &value.as_sequence();
  }

  /// A nested object is (content, metadata of the wrapper).
  Value unwrap(const Value& value, int depth) {
    const Sequence* nested = as_nested(value);
    if (nested == nullptr) return value;
    if (depth > max_nesting) fail(Errc::format, "objects are nested too deeply");
    const Value& content = nested->items[0];
    const Value& wrapper = nested->items[1];
    const std::string& type = member(wrapper, "__TYPE__").as_string();
    if (type == "DeferredGraphTensor") {
      Value args = Value::list();
      for (const Value& arg : list_of(member(content, "args"), "args"))
        args.as_sequence().items.push_back(unwrap(arg, depth + 1));
      return make_graph_tensor(member(wrapper, "jit_graph").as_string(), dtype_member(wrapper, "dtype"),
                               to_shape(member(wrapper, "shape")), args);
    }
    if (type == "DeferredTorchTensor") return as_tensor(unwrap(content, depth + 1), wrapper);
    fail(Errc::unsupported, "unknown __TYPE__ {} of a nested object", quote(type));
  }

  /// The array behind an external tensor, with the tensor's own dtype.
  static Value as_tensor(const Value& content, const Value& wrapper) {
    if (!content.is(Value::Kind::tensor))
      fail(Errc::format, "an external tensor that is {}", a_kind(content));
    const Tensor& stored = content.as_tensor();
    if (find_member(wrapper, "dtypes") == nullptr) return content;
    const DType dtype = parse_dtype(first_of(wrapper, "dtypes").as_string());
    check_shape(stored, to_shape(first_of(wrapper, "shapes")));
    if (dtype == stored.dtype() && content.as_leaf().role == TensorLeaf::Role::tensor) return content;
    if (dtype == DType::bfloat16 && size_of(stored.dtype()) == 2 && is_integer(stored.dtype()) &&
        stored.view() != nullptr) {
      View view = *stored.view();
      view.dtype = dtype;
      return Tensor::from_view(std::move(view));
    }
    return stored.cast(dtype);
  }

  static void check_shape(const Tensor& stored, const Shape& expected) {
    if (stored.shape() != expected) {
      fail(Errc::format, "the metadata has the shape {}, but the dataset {}", to_string(expected),
           to_string(stored.shape()));
    }
  }

  Leaf read_object(const std::shared_ptr<hdf5::File>& file, const std::string& key, const Value& metadata,
                   int depth) {
    switch (serializer_of(metadata)) {
      case Serializer::tensor: {
        const DType dtype = parse_dtype(first_of(metadata, "dtypes").as_string());
        return {read_tensor(file, key, dtype, to_shape(first_of(metadata, "shapes"))), {}, false};
      }
      case Serializer::ndarray:
        return {read_array(file, key, metadata), {}, false};
      case Serializer::scalar:
        return {read_scalar(metadata), {}, false};
      case Serializer::text:
        return {member(metadata, "string_value").as_string(), {}, false};
      case Serializer::none:
        return {};
      case Serializer::linked:
        return {{}, member(metadata, "key").as_string(), true};
      case Serializer::full:
        return {full_tensor(dtype_member(metadata, "dtype"), to_shape(member(metadata, "shape")),
                            member(metadata, "fill_value")),
                {},
                false};
      case Serializer::object:
        return {read_pickle(file, key), {}, false};
      case Serializer::external_object:
        return {read_external(metadata, depth), {}, false};
      case Serializer::external_safetensor:
        return {read_safetensor(metadata), {}, false};
      case Serializer::external_file:
        return {datasets_.file_tensor(member(metadata, "filepath").as_string(),
                                      dtype_member(metadata, "dtype"), to_shape(member(metadata, "shape"))),
                {},
                false};
    }
    return {};
  }

  static Serializer serializer_of(const Value& metadata) {
    const std::string& type = member(metadata, "__TYPE__").as_string();
    std::vector<std::string> known;
    for (const TagV05& tag : tags_v05) {
      if (tag.name == type) return tag.serializer;
      known.emplace_back(tag.name);
    }
    fail(Errc::unsupported, "unknown __TYPE__ {} (known: {})", quote(type), listed(known));
  }

  Value read_tensor(const std::shared_ptr<hdf5::File>& file, const std::string& key, DType dtype,
                    const Shape& shape) {
    Value leaf = datasets_.leaf(datasets_.find(file, key), {dtype, TensorLeaf::Role::tensor});
    check_shape(leaf.as_tensor(), shape);
    return leaf;
  }

  Value read_array(const std::shared_ptr<hdf5::File>& file, const std::string& key, const Value& metadata) {
    const Value* flag = find_member(metadata, "is_bfloat16");
    // numpy has no bfloat16: such an array can only be a tensor's.
    if (flag != nullptr && flag->is(Value::Kind::boolean) && flag->as_bool()) {
      return datasets_.leaf(datasets_.find(file, key), {DType::bfloat16, TensorLeaf::Role::tensor});
    }
    return datasets_.leaf(datasets_.find(file, key), {std::nullopt, TensorLeaf::Role::ndarray});
  }

  static Value read_scalar(const Value& metadata) {
    using enum Value::Kind;
    const Value& value = member(metadata, "scalar_value");
    if (!value.is(boolean) && !value.is(integer) && !value.is(real))
      fail(Errc::format, "a scalar that is {}", a_kind(value));
    return value;
  }

  Value read_pickle(const std::shared_ptr<hdf5::File>& file, const std::string& key) {
    const Located located = datasets_.find(file, key);
    const auto bytes = file->attributes(located.object).value("__BYTES__");
    if (!bytes || !bytes->is(Value::Kind::bytes)) fail(Errc::format, "the dataset has no __BYTES__");
    return unpickle_stored(bytes->as_bytes().data, allow_records_, memory_);
  }

  Value read_external(const Value& metadata, int depth) {
    if (depth > max_nesting) fail(Errc::format, "external links form a cycle");
    const std::string& path = member(metadata, "path").as_string();
    const std::string& key = member(metadata, "key").as_string();
    return within(quote(key) + " in " + quote(path), [&] {
      const std::shared_ptr<hdf5::File> file = datasets_.files().open(path);
      const Value* inner = find_member(metadata, "metadata");
      if (inner == nullptr || !inner->is(Value::Kind::dict) || inner->find("__TYPE__") == nullptr) {
        return datasets_.leaf(datasets_.find(file, key), {});
      }
      Leaf leaf = read_object(file, key, *inner, depth + 1);
      if (leaf.is_link) fail(Errc::format, "an external link to a link");
      return leaf.value;
    });
  }

  Value read_safetensor(const Value& metadata) {
    const std::string& path = member(metadata, "path").as_string();
    const std::string& key = member(metadata, "key").as_string();
    return within(quote(key) + " in " + quote(path), [&] {
      Value& root = safetensors_[path];
      if (root.is_none()) root = safetensors::read(datasets_.files().map(path), {}, memory_).root;
      return root.as_dict().at(key);
    });
  }

  Datasets& datasets_;
  std::shared_ptr<hdf5::File> file_;
  const hdf5::Attributes& root_;
  MemoryBudget& memory_;
  bool allow_records_;
  std::map<std::string, Value> safetensors_;
};

/// The leaf at the end of a chain of links.
size_t follow_links(const std::vector<Leaf>& leaves,
                    const std::unordered_map<std::string_view, size_t, KeyedHash>& positions, size_t start) {
  size_t at = start;
  for (size_t hops = 0; leaves[at].is_link; ++hops) {
    const auto next = positions.find(leaves[at].link);
    if (next == positions.end())
      fail(Errc::format, "it is a link to {}, which is not in the checkpoint", quote(leaves[at].link));
    if (hops > 64) fail(Errc::format, "links form a cycle");
    at = next->second;
  }
  return at;
}

}  // namespace

Value read_v05(Datasets& datasets, const hdf5::Attributes& root, bool allow_records) {
  const std::shared_ptr<hdf5::File>& file = datasets.files().main();
  MemoryBudget& memory = *file->memory();
  if (!root.is_set("__SUCCESS__")) {
    fail(Errc::format,
         "the checkpoint was only partially written (no __SUCCESS__); write it again or take an earlier one");
  }
  const TreeSpec spec = within(
      "__spec__", [&] { return parse_spec_v05(parse_python_json(*root.text("__spec__"), memory), memory); });
  const std::vector<std::string> keys = leaf_keys(spec, memory);
  ReaderV05 reader(datasets, file, root, allow_records);
  RefusedValues refused;
  std::vector<Leaf> leaves;
  leaves.reserve(keys.size());
  std::unordered_map<std::string_view, size_t, KeyedHash> positions;
  positions.reserve(keys.size());
  for (const std::string& key : keys) {
    positions.emplace(key, leaves.size());
    leaves.push_back(refused.attempt(key, [&] { return reader.read_leaf(key); }));
  }
  refused.fail_if_any();
  size_t next = 0;
  return build_tree(spec, [&] {
    const size_t i = next++;
    return within(quote(keys[i]), [&] { return leaves[follow_links(leaves, positions, i)].value; });
  });
}

}  // namespace cbk::h5
