#include "host/formats/h5/datasets.hpp"

#include "host/formats/tensorflow/foreign.hpp"
#include "host/value/element.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

constexpr int max_external_links = 8;
constexpr uint64_t leaf_bytes = 1024;  // in memory, about

}  // namespace

Located Datasets::follow(const std::shared_ptr<hdf5::File>& start, const hdf5::Link& first) {
  std::shared_ptr<hdf5::File> file = start;
  const hdf5::Link* link = &first;
  for (int hops = 0; hops < max_external_links; ++hops) {
    if (link->kind == hdf5::Link::Kind::hard) return {file, file->objects().read(link->address), first.name};
    if (link->kind == hdf5::Link::Kind::external) file = files_.open(link->file);
    const std::string target = link->target;
    link = file->find(target);
    if (link == nullptr) fail(Errc::format, "the link leads to {}, which does not exist", quote(target));
  }
  fail(Errc::format, "links form a cycle");
}

Located Datasets::find(const std::shared_ptr<hdf5::File>& file, std::string_view path) {
  return within([&] { return "dataset " + quote(path); },
                [&] {
                  const hdf5::Link* link = file->find(path);
                  if (link == nullptr)
                    fail(Errc::format, "it is not in the file; is the checkpoint complete?");
                  Located located = follow(file, *link);
                  located.name = path;
                  if (!located.object.is_dataset()) fail(Errc::format, "it is not a dataset");
                  return located;
                });
}

StoragePtr Datasets::by_library(const Located& located, const hdf5::Dataset& dataset, DType dtype) {
  auto& reader = libraries_[located.file.get()];
  if (!reader) reader = std::make_shared<hdf5::LibraryReader>(located.file->mapped(), located.file->memory());
  return hdf5::library_storage(reader, dataset, located.object.address, dtype);
}

StoragePtr Datasets::storage(const Located& located, const hdf5::Dataset& dataset, DType dtype) {
  const uint64_t size = checked_mul(dataset.space.count(), size_of(dtype), "a dataset");
  const auto cannot = [&](const Error& why) {
    return unreadable_storage(size, why.in(fmt::format("dataset {} cannot be read", quote(located.name))));
  };
  const auto by_library_or_not = [&] {
    try {
      return by_library(located, dataset, dtype);
    } catch (const Error& error) {
      if (error.code() == Errc::interrupted) throw;
      return cannot(error);
    }
  };
  if (!dataset.type.dtype()) return by_library_or_not();
  try {
    return hdf5::open_storage(located.file->objects().shared_image(), dataset,
                              [&](const std::string& name) { return files_.map(name); });
  } catch (const Error& error) {
    const bool is_cut = files_.may_be_cut() && error.code() == Errc::format;
    if (error.code() == Errc::io || is_cut) return cannot(error);
    if (error.code() != Errc::unsupported) throw;
    return by_library_or_not();
  }
}

Tensor Datasets::tensor(const Located& located, std::optional<DType> wanted) {
  hdf5::Dataset dataset = hdf5::read_dataset(located.file->objects(), located.object);
  if (wanted == DType::bfloat16 && dataset.type.kind == hdf5::Datatype::Class::opaque &&
      dataset.type.size == size_of(DType::bfloat16)) {
    dataset.type.kind = hdf5::Datatype::Class::real;  // h5py has no name for the elements
    dataset.type.is_bfloat = true;
  }
  if (dataset.space.is_null) fail(Errc::unsupported, "the dataset has no data");
  const auto stored = dataset.type.dtype() ? dataset.type.dtype() : dataset.type.widened();
  if (!stored) fail(Errc::unsupported, "elements of type {} have no dtype", dataset.type.describe());
  DType dtype = *stored;
  if (wanted == DType::bfloat16 && dtype != DType::bfloat16) {
    if (dtype != DType::int16 && dtype != DType::uint16) {
      fail(Errc::format, "bfloat16 is stored in 16-bit integers, not in {}", name_of(dtype));
    }
    dtype = DType::bfloat16;
  }
  View view;
  view.storage = storage(located, dataset, *stored);
  places_.add(*located.file, located.object, dataset, located.name);
  view.dtype = dtype;
  view.shape = dataset.space.shape();
  view.strides = contiguous_strides(view.shape);
  const Tensor tensor = Tensor::from_view(std::move(view));
  return wanted && *wanted != dtype ? tensor.cast(*wanted) : tensor;
}

Value Datasets::leaf(const Located& located, const As& as) {
  const Key key{located.file.get(), located.object.address, as.dtype ? static_cast<int>(*as.dtype) : -1,
                as.role};
  if (auto known = leaves_.find(key); known != leaves_.end()) return known->second;
  located.file->memory()->charge(leaf_bytes);
  Value leaf(std::make_shared<const TensorLeaf>(TensorLeaf{tensor(located, as.dtype), as.role}));
  leaves_.emplace(key, leaf);
  return leaf;
}

Value Datasets::scalar(const Located& located) {
  const Tensor value = tensor(located, std::nullopt);
  if (value.numel() != 1)
    fail(Errc::format, "a number is expected, but the dataset has the shape {}", to_string(value.shape()));
  return element_value(value.dtype(), value.to_bytes());
}

bool Datasets::holds_texts(const Located& located) {
  const hdf5::Message* type = located.object.find(hdf5::MessageType::datatype);
  return type != nullptr && located.file->objects().datatype(*type).is_texts();
}

Value Datasets::texts(const Located& located) {
  hdf5::Objects& objects = located.file->objects();
  const hdf5::Dataset dataset = hdf5::read_dataset(objects, located.object);
  if (dataset.space.is_null) fail(Errc::unsupported, "the dataset has no data");
  const StoragePtr storage = hdf5::open_storage(objects.shared_image(), dataset,
                                                [&](const std::string& name) { return files_.map(name); });
  places_.add(*located.file, located.object, dataset, located.name);
  // Texts that were never written, or compress well, take no room in the file, but each takes some memory.
  constexpr uint64_t text_bytes = 40;
  MemoryLoan memory(objects.image().memory(), storage->size());
  memory.grow(checked_mul(dataset.space.count(), text_bytes, "the texts"));
  Bytes elements(storage->size());
  storage->read(0, elements);
  std::vector<std::string_view> list;
  list.reserve(dataset.space.count());
  for (size_t at = 0; at < elements.size(); at += dataset.type.size) {
    list.push_back(objects.text(dataset.type, ByteView(elements).subspan(at, dataset.type.size)));
  }
  uint64_t total = 0;
  for (const std::string_view text : list) total += text.size() + sizeof(uint64_t);
  memory.grow(total);
  objects.image().memory().charge(total);
  const std::string stored = tensorflow::encode_texts(list).bytes;
  const ByteView bytes = as_bytes(stored);
  return tensorflow::to_value(
      {tensorflow::find("string"), dataset.space.shape(),
       Tensor::from_bytes(DType::uint8, {static_cast<int64_t>(bytes.size())}, {bytes.begin(), bytes.end()})});
}

Value Datasets::file_tensor(const std::string& path, DType dtype, const Shape& shape) {
  const auto file = files_.map(path);
  const uint64_t size = checked_mul(static_cast<uint64_t>(numel_of(shape)), size_of(dtype), "a tensor");
  const ByteView inside = file->slice(0, size, "the tensor in " + quote(path));
  return Tensor::from_view({map_storage(file, 0, inside.size()), dtype, 0, shape, contiguous_strides(shape)});
}

Value make_graph_tensor(const std::string& graph, DType dtype, const Shape& shape, const Value& args) {
  auto extents = std::make_shared<Sequence>();
  extents->kind = Sequence::Kind::torch_size;
  for (const int64_t extent : shape) extents->items.emplace_back(extent);
  Value state = Value::dict();
  state.as_dict().set("jit_graph", graph);
  state.as_dict().set("dtype", name_of(dtype));
  state.as_dict().set("shape", extents);
  state.as_dict().set("args", args);
  auto object = std::make_shared<cbk::Object>();
  object->type = "cerebras.graph_tensor";
  object->state = std::move(state);
  return object;
}

Shape to_shape(const Value& list) {
  Shape shape;
  if (list.is(Value::Kind::integer)) return {list.as_int()};
  if (!list.is(Value::Kind::sequence)) fail(Errc::format, "a shape that is {}", a_kind(list));
  for (const Value& extent : list.as_sequence().items) {
    if (!extent.is(Value::Kind::integer) || !extent.as_integer().fits || extent.as_int() < 0)
      fail(Errc::format, "a shape with an impossible extent");
    shape.push_back(extent.as_int());
  }
  if (shape.size() > 64) fail(Errc::format, "a shape of {} dimensions", shape.size());
  numel_of(shape);
  return shape;
}

}  // namespace cbk::h5
